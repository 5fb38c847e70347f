"""The HTTP APIs of nsqd and nsqlookupd, as far as this project asks them, over gevent sockets.

Source: nsqd and nsqlookupd HTTP documentation. An answer of a server before 1.0 comes wrapped as
``{"status_code", "data"}``; it is unwrapped. Nothing is retried here.
"""

from __future__ import annotations

import http.client
from typing import Any, TypeVar
from urllib.parse import urlencode

import gevent
import msgspec
from gevent import socket as gsocket

from framework.errors import BrokerError, BrokerUnreachable, ProtocolError
from framework.transports.nsq.urls import join_address, split_address

TIMEOUT = 2.0
MAX_ANSWER = 64 * 1024 * 1024
T = TypeVar("T")


class Producer(msgspec.Struct):
    """An nsqd as nsqlookupd knows it."""

    broadcast_address: str
    tcp_port: int
    http_port: int = 0
    hostname: str = ""
    version: str = ""
    topics: list[str] = []

    @property
    def node(self) -> str:
        """Its TCP address, ``host:port``."""
        return join_address(self.broadcast_address, self.tcp_port)


class Lookup(msgspec.Struct):
    """Who has a topic."""

    producers: list[Producer] = []
    channels: list[str] = []


class Nodes(msgspec.Struct):
    producers: list[Producer] = []


class Info(msgspec.Struct):
    """What a server says of itself; nsqlookupd says no more than its version."""

    version: str
    broadcast_address: str = ""
    hostname: str = ""
    tcp_port: int = 0
    http_port: int = 0


class ClientStats(msgspec.Struct):
    """One consumer of a channel."""

    client_id: str = ""
    hostname: str = ""
    remote_address: str = ""
    user_agent: str = ""
    state: int = 0
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0


class ChannelStats(msgspec.Struct):
    """Counts since nsqd started. Neither what is in flight nor what is deferred is part of ``depth``."""

    channel_name: str
    depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    paused: bool = False
    clients: list[ClientStats] | None = None


class TopicStats(msgspec.Struct):
    topic_name: str
    depth: int = 0
    message_count: int = 0
    paused: bool = False
    channels: list[ChannelStats] = []


class Stats(msgspec.Struct):
    version: str = ""
    health: str = ""
    start_time: int = 0
    topics: list[TopicStats] | None = None
    """None where there are none: nsqd says null."""


class _Wrapped(msgspec.Struct):
    """How servers before 1.0 answered."""

    status_code: int
    data: msgspec.Raw


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = gsocket.create_connection((self.host, self.port), self.timeout)


class _Server:
    """What both servers' APIs have in common; ``address`` is ``host:port`` of the HTTP port, times in seconds.

    Every method raises BrokerUnreachable (no answer), BrokerError (its ``code`` is the server's message, such
    as TOPIC_NOT_FOUND) and ProtocolError (an answer that is none of this API).
    """

    kind = "server"

    def __init__(self, address: str, *, timeout: float = TIMEOUT) -> None:
        self.address = address
        self.timeout = timeout

    def ping(self) -> None:
        """Return when the server says that it is well."""
        self._request("GET", "/ping")

    def info(self) -> Info:
        return self._get(Info, "/info")

    def create_topic(self, topic: str) -> None:
        self._post("/topic/create", topic=topic)

    def delete_topic(self, topic: str) -> None:
        self._post("/topic/delete", topic=topic)

    def create_channel(self, topic: str, channel: str) -> None:
        """The topic must exist."""
        self._post("/channel/create", topic=topic, channel=channel)

    def delete_channel(self, topic: str, channel: str) -> None:
        self._post("/channel/delete", topic=topic, channel=channel)

    def _post(self, path: str, **query: str) -> None:
        self._request("POST", f"{path}?{urlencode(query)}")

    def _get(self, kind: type[T], path: str, **query: str) -> T:
        answer = self._request("GET", f"{path}?{urlencode(query)}" if query else path)
        try:
            return msgspec.json.decode(_unwrapped(answer), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(f"{self._name} answered {path} with {answer[:80]!r}: {error}") from None

    def _request(self, method: str, path: str) -> bytes:
        """The body of a 200. The limit covers all of it: a socket's own timeout starts anew at every byte."""
        limit = gevent.Timeout(self.timeout)
        connection = _Connection(*split_address(self.address), timeout=self.timeout)
        try:
            with limit:
                connection.request(method, path)
                answer = connection.getresponse()
                body = answer.read(MAX_ANSWER)
        except gevent.Timeout as error:
            if error is not limit:
                raise
            raise BrokerUnreachable(f"{self._name} did not answer {path} within {self.timeout:g} s") from None
        except (OSError, UnicodeError) as error:
            raise BrokerUnreachable(f"{self._name} cannot be reached: {error}") from error
        except http.client.HTTPException as error:
            raise ProtocolError(f"{self._name} does not speak HTTP: {type(error).__name__} {error}") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise self._refusal(answer.status, path, body)
        return body

    def _refusal(self, status: int, path: str, body: bytes) -> BrokerError | ProtocolError:
        try:
            words = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ProtocolError(f"{self._name} answered {path} with HTTP {status}: {body[:80]!r}")
        code = words.get("message") or words.get("status_txt") or f"HTTP_{status}"
        return BrokerError(str(code), f"({self._name}, HTTP {status} to {path})", fatal=False)

    @property
    def _name(self) -> str:
        return f"{self.kind} {self.address}"


class Nsqd(_Server):
    """An nsqd's HTTP API (port 4151 unless told otherwise)."""

    kind = "nsqd"

    def stats(self, topic: str = "", channel: str = "", *, clients: bool = True) -> Stats:
        """The counters of all topics, or of one; ``clients=False`` leaves out the consumers."""
        query = {"format": "json", "include_mem": "false", "include_clients": str(clients).lower()}
        query.update({k: v for k, v in (("topic", topic), ("channel", channel)) if v})
        return self._get(Stats, "/stats", **query)

    def empty_topic(self, topic: str) -> None:
        self._post("/topic/empty", topic=topic)

    def pause_topic(self, topic: str, *, paused: bool = True) -> None:
        self._post("/topic/pause" if paused else "/topic/unpause", topic=topic)

    def empty_channel(self, topic: str, channel: str) -> None:
        self._post("/channel/empty", topic=topic, channel=channel)

    def pause_channel(self, topic: str, channel: str, *, paused: bool = True) -> None:
        self._post("/channel/pause" if paused else "/channel/unpause", topic=topic, channel=channel)


class Lookupd(_Server):
    """An nsqlookupd's HTTP API (port 4161 unless told otherwise)."""

    kind = "nsqlookupd"

    def lookup(self, topic: str) -> Lookup:
        """The nsqds that have ``topic``; an unknown topic is an empty answer."""
        try:
            return self._get(Lookup, "/lookup", topic=topic)
        except BrokerError as error:
            if "NOT_FOUND" in error.code or "INVALID_ARG_TOPIC" in error.code:  # the second is what 0.3 said
                return Lookup()
            raise

    def nodes(self) -> list[Producer]:
        """Every nsqd that is registered."""
        return self._get(Nodes, "/nodes").producers


def _unwrapped(answer: bytes) -> bytes | msgspec.Raw:
    try:
        return msgspec.json.decode(answer, type=_Wrapped).data
    except msgspec.ValidationError:
        return answer
