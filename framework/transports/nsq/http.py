"""The HTTP APIs of nsqd and nsqlookupd as typed clients, over gevent sockets; of use by itself. Nothing is retried here.

    for topic in Nsqd("127.0.0.1:4151").stats().topics or []:
        print(topic.topic_name, topic.depth)

Source: nsqd and nsqlookupd HTTP documentation, and nsqd/http.go. An answer of a server before 1.0 comes wrapped as
``{"status_code", "data"}``; it is unwrapped.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import gevent
import msgspec
from gevent import socket as gsocket

from framework.decoding import UNREADABLE, prepared
from framework.errors import BadSetting, BrokerError, BrokerUnreachable, ProtocolError, cannot_be_reached
from framework.transports.nsq import credentials, wire
from framework.transports.nsq.answers import (
    Channels,
    ChannelStats,
    ClientStats,
    Info,
    Lookup,
    Nodes,
    Producer,
    Stats,
    Topics,
    TopicStats,
)
from framework.transports.nsq.urls import NSQD_PORT, Options, join_address, split_address

__all__ = ["ChannelStats", "ClientStats", "Info", "Lookup", "Lookupd", "Nsqd", "Producer", "Stats", "TopicStats"]

TIMEOUT = 2.0
MAX_ANSWER = 64 * 1024 * 1024
_SHOWN = 60
"""Characters of what is no HTTP, in an error."""
_HTTPS = "https://"
_ADDRESS = re.compile(r"(https://)?(\[[^\]/]+\]|[^\[\]:/\s]+):\d{1,5}")
_NO_SUCH_PATH = "NOT_FOUND"
"""What both servers say of a path that they do not have; of a topic they say TOPIC_NOT_FOUND."""
_DEFAULTS = Options()
T = TypeVar("T")


class _Answer(NamedTuple):
    status: int
    body: bytes
    date: str
    """When, by the server's clock; it may be empty."""


@prepared
class _Wrapped(msgspec.Struct):
    """How servers before 1.0 answered."""

    status_code: int
    data: msgspec.Raw


@prepared
class _TlsRequired(msgspec.Struct):
    """How an nsqd with --tls-required answers HTTP in clear."""

    https_port: int


class _Connection(http.client.HTTPConnection):
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    path = ""

    def connect(self) -> None:
        if self.path:
            self.sock = gsocket.socket(socket.AF_UNIX)
            self.sock.connect(self.path)
        else:
            self.sock = gsocket.create_connection((self.host, self.port), self.timeout)
        if self.tls is not None:
            self.sock = self.tls.wrap_socket(self.sock, server_hostname=self.server_name)


class _Server:
    """What both servers' APIs have in common; ``address`` is ``host:port`` of the HTTP port, ``https://host:port``, or the path
    of a Unix socket.

    ``timeout``: seconds that each request may take. ``options``: its ``tls_`` fields say how HTTPS is spoken; with ``tls`` an
    nsqd that takes HTTPS only is asked on the port that it names.

    Every method raises BrokerUnreachable (no answer), TlsFailed, BrokerError (its ``code`` is the server's message, such
    as TOPIC_NOT_FOUND) and ProtocolError (an answer that is none of this API). Making one raises BadSetting.
    """

    kind = "server"

    def __init__(self, address: str, *, timeout: float = TIMEOUT, options: Options = _DEFAULTS) -> None:
        self.address = address.removeprefix("http://")
        if not (address.startswith("/") or _ADDRESS.fullmatch(self.address)):
            raise BadSetting(
                f"{self.kind} {address!r}: write where its HTTP is, as 127.0.0.1:4151, [::1]:4151 or https://host:4152"
            )
        self.timeout = timeout
        self._options = options

    def ping(self) -> None:
        """Return when the server says that it is well."""
        self._request("GET", "/ping")

    def clock(self) -> float:
        """What its clock says, in seconds since 1970, to the second below."""
        date = self._ask("GET", "/ping").date
        try:
            return parsedate_to_datetime(date).timestamp()
        except ValueError:
            raise ProtocolError(f"{self._name} answered /ping with no date that can be read: {date!r}") from None

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

    def _post(self, path: str, body: bytes = b"", **query: str) -> None:
        self._request("POST", f"{path}?{urlencode(query)}", body)

    def _get(self, kind: type[T], path: str, **query: str) -> T:
        answer = self._request("GET", f"{path}?{urlencode(query)}" if query else path)
        try:
            return msgspec.json.decode(_unwrapped(answer), type=kind)
        except UNREADABLE as error:
            raise ProtocolError(f"{self._name} answered {path} with {answer[:80]!r}: {error}") from None

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of a 200."""
        return self._ask(method, path, body).body

    def _ask(self, method: str, path: str, body: bytes = b"") -> _Answer:
        """A 200. The limit covers all of it: a socket's own timeout starts anew at every byte."""
        limit = gevent.Timeout(self.timeout)
        try:
            with limit:
                answer = self._exchange(self.address, method, path, body)
                if answer.status == http.client.FORBIDDEN and self._options.tls and (port := _https_port(answer.body)):
                    host = split_address(self.address)[0]
                    answer = self._exchange(_HTTPS + join_address(host, port), method, path, body)
        except gevent.Timeout as error:
            if error is not limit:
                raise
            raise BrokerUnreachable(f"{self._name} did not answer {path} within {self.timeout:g} s") from None
        except ssl.SSLError as error:
            raise credentials.refusal(self._name, error) from error
        except (OSError, UnicodeError) as error:
            raise cannot_be_reached(self._name, error) from error
        except http.client.HTTPException as error:
            said = f"{type(error).__name__} {str(error)[:_SHOWN]!r}"
            raise ProtocolError(f"{self._name} does not speak HTTP: {said}") from None
        if answer.status != http.client.OK:
            raise self._refusal(answer.status, path, answer.body)
        return answer

    def _exchange(self, address: str, method: str, path: str, body: bytes) -> _Answer:
        bare = address.removeprefix(_HTTPS)
        host, port = ("localhost", None) if bare.startswith("/") else split_address(bare)
        connection = _Connection(host, port, timeout=self.timeout)
        if bare.startswith("/"):
            connection.path = bare
        elif bare != address:
            connection.tls = credentials.tls_context(self._options)
            connection.server_name = credentials.server_name(self._options, bare)
        try:
            connection.request(method, path, body or None)
            answer = connection.getresponse()
            return _Answer(answer.status, answer.read(MAX_ANSWER), answer.headers.get("Date", ""))
        finally:
            connection.close()

    def _refusal(self, status: int, path: str, body: bytes) -> BrokerError | ProtocolError:
        try:
            words = msgspec.json.decode(body, type=dict[str, Any])
        except UNREADABLE:
            return ProtocolError(f"{self._name} answered {path} with HTTP {status}: {body[:80]!r}")
        code = words.get("message") or words.get("status_txt") or f"HTTP_{status}"
        return BrokerError(str(code), f"({self._name}, HTTP {status} to {path})", fatal=False)

    @property
    def _name(self) -> str:
        return f"{self.kind} {self.address}"


class Nsqd(_Server):
    """An nsqd's HTTP API (port 4151, HTTPS 4152, unless told otherwise). It asks for no AUTH, whatever TCP does."""

    kind = "nsqd"

    @classmethod
    def of(cls, node: str, options: Options) -> Nsqd:
        """That of the nsqd whose TCP address is ``node``."""
        if node.startswith("/"):  # a Unix socket: it is on this machine
            return cls(f"127.0.0.1:{options.http_port or NSQD_PORT + 1}", options=options)
        host, port = split_address(node)
        return cls(join_address(host, options.http_port or port + 1), options=options)

    def stats(self, topic: str = "", channel: str = "", *, clients: bool = True, memory: bool = False) -> Stats:
        """The counters of all topics, or of one; ``clients=False`` leaves out the connections."""
        query = {"format": "json", "include_mem": str(memory).lower(), "include_clients": str(clients).lower()}
        query.update({k: v for k, v in (("topic", topic), ("channel", channel)) if v})
        return self._get(Stats, "/stats", **query)

    def publish(self, topic: str, body: bytes, *, delay: float = 0.0) -> None:
        """Store one message, to be delivered after ``delay`` seconds."""
        defer = {"defer": str(wire.milliseconds(delay))} if delay else {}
        self._post("/pub", body, topic=topic, **defer)

    def publish_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Store all of ``bodies``, or none."""
        self._post("/mpub", wire.mpub_body(bodies), topic=topic, binary="true")

    def empty_topic(self, topic: str) -> None:
        self._post("/topic/empty", topic=topic)

    def pause_topic(self, topic: str, *, paused: bool = True) -> None:
        self._post("/topic/pause" if paused else "/topic/unpause", topic=topic)

    def empty_channel(self, topic: str, channel: str) -> None:
        self._post("/channel/empty", topic=topic, channel=channel)

    def pause_channel(self, topic: str, channel: str, *, paused: bool = True) -> None:
        self._post("/channel/pause" if paused else "/channel/unpause", topic=topic, channel=channel)

    def config(self, option: str) -> Any:
        """A value that it was started with or told since, as ``nsqlookupd_tcp_addresses``."""
        return self._get(object, f"/config/{quote(option)}")

    def configure(self, option: str, value: str | Sequence[str]) -> None:
        """Change ``nsqlookupd_tcp_addresses`` (a list) or ``log_level`` (a word) while it runs."""
        body = value.encode() if isinstance(value, str) else msgspec.json.encode(list(value))
        self._request("PUT", f"/config/{quote(option)}", body)


class Lookupd(_Server):
    """An nsqlookupd's HTTP API (port 4161 unless told otherwise)."""

    kind = "nsqlookupd"

    @classmethod
    def of(cls, address: str, options: Options, *, timeout: float = TIMEOUT) -> Lookupd:
        """That at ``address`` of a broker URL. The name that was given for the nsqds' certificates is none of its own."""
        return cls(address, timeout=timeout, options=replace(options, tls_server_name=""))

    def _refusal(self, status: int, path: str, body: bytes) -> BrokerError | ProtocolError:
        """An nsqd answers 404 here too, and would be taken for an nsqlookupd that has no such topic."""
        refusal = super()._refusal(status, path, body)
        if isinstance(refusal, BrokerError) and refusal.code == _NO_SUCH_PATH and path.startswith(("/lookup", "/nodes")):
            return ProtocolError(f"{self.address} is no nsqlookupd: name nsqlookupd's HTTP port, 4161 unless told otherwise")
        return refusal

    def lookup(self, topic: str) -> Lookup:
        """The nsqds that have ``topic``, without those tombstoned for it; an unknown topic is an empty answer."""
        try:
            return self._get(Lookup, "/lookup", topic=topic)
        except BrokerError as error:
            if "NOT_FOUND" in error.code or "INVALID_ARG_TOPIC" in error.code:  # the second is what 0.3 said
                return Lookup()
            raise

    def nodes(self) -> list[Producer]:
        """Every nsqd that is registered."""
        return self._get(Nodes, "/nodes").producers

    def topics(self) -> list[str]:
        return self._get(Topics, "/topics").topics

    def channels(self, topic: str) -> list[str]:
        """Of ``topic``, on any nsqd; none where it is unknown."""
        return self._get(Channels, "/channels", topic=topic).channels

    def tombstone(self, topic: str, node: str) -> None:
        """Let no consumer find ``topic`` on ``node``, which is ``host:port`` of its HTTP, while it is deleted there."""
        self._post("/topic/tombstone", topic=topic, node=node)


def _https_port(answer: bytes) -> int:
    """The port that an nsqd with --tls-required refers to; 0 where the answer says no such thing."""
    try:
        return msgspec.json.decode(answer, type=_TlsRequired).https_port
    except UNREADABLE:
        return 0


def _unwrapped(answer: bytes) -> bytes | msgspec.Raw:
    try:
        return msgspec.json.decode(answer, type=_Wrapped).data
    except msgspec.ValidationError:
        return answer
