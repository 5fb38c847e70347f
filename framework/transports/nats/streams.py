"""JetStream's administration over a session: which stream has a subject, what a consumer is like, making what is missing.

What is there is never changed: where it differs from what we would make, the difference is put in words. Source: the JetStream
API reference (``$JS.API``), and nats-server's jetstream_errors_generated.go for the codes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import gevent
import msgspec

from framework.decoding import UNREADABLE, prepared
from framework.errors import BrokerError, NegotiationRefused, ProtocolError, TryLater
from framework.names import EPHEMERAL
from framework.transports.nats import headers, wire
from framework.transports.nats.carrier import Asking
from framework.transports.nats.urls import Options, mapped

FRESH = 2.0
"""Seconds for which a stream is a new one."""
SETTLING = 0.2
"""Seconds for which an older server must have kept to one of several."""
NANO = 10**9
NO_STREAM, NO_CONSUMER, NO_MESSAGE, NAME_IN_USE, CONSUMER_EXISTS = 10059, 10014, 10037, 10058, 10148
NO_CLUSTER = 10074
_NO_MORE = {  # why a stream takes no other consumer
    10026: "has as many consumers as it, or the account, may (max_consumers): allow more, or remove one",
    10100: "is a work queue, and another consumer takes these messages already: name its channel",
}
NO_LEADER = 10008
"""Of a server that has known of no leader of the cluster's JetStream for 10 s."""
_DISABLED = frozenset({10039, 10076, 10035, NO_LEADER})
COUNTS = (2, 10, 14)
"""The version from which deliveries are counted right: before it, what is due again while no pull waits counts more than once,
and then once more from 1 (nats-server#5305)."""
ONE_OF_A_NAME = (2, 10, 2)
"""The version from which two that make one stream at the same moment get the same one (nats-server#4013, #4589)."""
SCHEDULES = (2, 12)
"""The version that began to deliver a message at a time of its publisher's choosing (ADR-51)."""
NEVER = datetime.fromtimestamp(0, UTC)
UNUSED = 300.0
"""Seconds after which a consumer of an ephemeral channel goes that nobody pulls from: a stream with retention=interest keeps all
that one has not taken. Whose calls are longer, and pull nothing meanwhile, is not for such a channel."""
LATER = "_at."
"""Before the subjects of messages that are not to be delivered yet."""


class Refusal(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class Transform(msgspec.Struct, frozen=True):
    src: str = ""
    dest: str = ""


class Limits(msgspec.Struct, frozen=True):
    max_streams: int = -1  # these are of an account; less than 1: none
    max_consumers: int = -1
    max_ack_pending: int = -1  # of a stream's consumers


class StreamConfig(msgspec.Struct, frozen=True):
    name: str = ""
    subjects: list[str] = []
    storage: str = "file"
    mirror: dict[str, Any] | None = None
    sources: list[Any] | None = None
    subject_transform: Transform | None = None
    max_consumers: int = -1
    retention: str = "limits"
    num_replicas: int = 1
    discard: str = "old"
    max_age: int = 0
    max_msgs: int = -1
    max_bytes: int = -1
    max_msgs_per_subject: int = -1
    discard_new_per_subject: bool = False
    sealed: bool = False
    consumer_limits: Limits = Limits()
    duplicate_window: int = 0
    allow_msg_schedules: bool = False
    no_ack: bool = False
    persist_mode: str = ""


class StreamState(msgspec.Struct, frozen=True):
    messages: int = 0
    last_seq: int = 0
    subjects: dict[str, int] | None = None


@prepared
class Stream(msgspec.Struct, frozen=True):
    """STREAM.INFO, and an entry of STREAM.LIST."""

    config: StreamConfig = StreamConfig()
    created: datetime = NEVER
    state: StreamState = StreamState()
    error: Refusal | None = None


class ConsumerConfig(msgspec.Struct, frozen=True):
    ack_policy: str = "none"
    ack_wait: int = 0
    max_deliver: int = -1
    max_ack_pending: int = -1
    filter_subject: str = ""
    filter_subjects: list[str] = []
    deliver_subject: str = ""
    deliver_policy: str = "all"
    backoff: list[int] = []
    max_batch: int = 0
    max_expires: int = 0
    headers_only: bool = False
    mem_storage: bool = False
    inactive_threshold: int = 0
    priority_groups: list[str] = []


@prepared
class Consumer(msgspec.Struct, frozen=True):
    """CONSUMER.INFO."""

    name: str = ""
    stream_name: str = ""
    created: datetime = NEVER
    config: ConsumerConfig = ConsumerConfig()
    num_pending: int = 0
    num_ack_pending: int = 0
    paused: bool = False
    error: Refusal | None = None

    @property
    def lease(self) -> float:
        """Seconds: the shortest time after which it delivers again."""
        return min([self.config.ack_wait, *self.config.backoff]) / NANO


class _StoredMessage(msgspec.Struct, frozen=True):
    time: datetime = NEVER
    seq: int = 0


@prepared
class _Stored(msgspec.Struct, frozen=True):
    """STREAM.MSG.GET."""

    message: _StoredMessage = _StoredMessage()
    error: Refusal | None = None


@prepared
class Account(msgspec.Struct, frozen=True):
    """INFO: what our account has, and may have."""

    streams: int = 0
    limits: Limits = Limits()
    error: Refusal | None = None


@prepared
class _Page(msgspec.Struct, frozen=True):
    """A part of a list, which has ``total`` entries."""

    total: int = 0
    streams: list[Any] | None = None
    consumers: list[Any] | None = None
    error: Refusal | None = None


Answer = TypeVar("Answer", Stream, Consumer, Account, _Page, _Stored)


class Api:
    """Requests to the JetStream of the servers behind a session. Each blocks its greenlet, ``timeout`` seconds at most; None:
    as long as the session's answers may take.

    Raise BrokerUnreachable, TryLater (JetStream is not ready), BrokerError, ProtocolError.
    """

    def __init__(self, session: Asking, timeout: float | None = None) -> None:
        self._session = session
        self._timeout = timeout

    # --- streams

    def stream_of(self, topic: str) -> str:
        """The name of the stream that keeps ``topic``; empty where there is none."""
        names = self.streams_of(topic)
        return names[0] if names else ""

    def streams_of(self, topic: str) -> list[str]:
        """As ``stream_of``: two may overlap where they have wildcards."""
        return list(self._pages("STREAM.NAMES", "streams", {"subject": topic}))

    def stream(self, name: str, subjects: str = "") -> Stream | None:
        """Its configuration, and how many messages it has of ``subjects``; None where there is none."""
        body = {"subjects_filter": subjects} if subjects else {}
        answer = self._ask(Stream, f"STREAM.INFO.{name}", body)
        return None if _is(answer.error, NO_STREAM) else self._good(answer, f"stream {name}")

    def state(self, name: str) -> StreamState:
        """Empty where there is no such stream."""
        found = self.stream(name)
        return found.state if found is not None else StreamState()

    def stored(self, stream: str, sequence: int) -> int | None:
        """When the message of this number was stored: nanoseconds since 1970, of whole microseconds. None: there is none."""
        found = self._stored(stream, {"seq": sequence})
        return None if found is None else _nanoseconds(found.time)

    def stored_from(self, stream: str, sequence: int) -> tuple[int, int] | None:
        """The number of the first message from ``sequence`` on, and when it was stored, as ``stored``. None: there is none."""
        found = self._stored(stream, {"seq": sequence, "next_by_subj": ">"})
        return None if found is None else (found.seq, _nanoseconds(found.time))

    def _stored(self, stream: str, which: dict[str, object]) -> _StoredMessage | None:
        answer = self._ask(_Stored, f"STREAM.MSG.GET.{stream}", which)
        return None if _is(answer.error, NO_MESSAGE) else self._good(answer, f"stream {stream}").message

    def ensure_stream(self, topic: str, options: Options) -> str:
        """The name of the stream that keeps ``topic``, made if there is none."""
        name = self.stream_of(topic) or self._made(topic, options)
        self._let_settle(name)
        return name

    def _made(self, topic: str, options: Options) -> str:
        config = stream_config(topic, options, self._schedules)
        answer = self._ask(Stream, f"STREAM.CREATE.{config['name']}", config)
        if _is(answer.error, NAME_IN_USE):  # made in this moment by another; or somebody's, of other subjects
            if name := self.stream_of(topic):
                return name
            words = self.in_the_way(topic) or "it was there a moment ago"
            raise NegotiationRefused("STREAM", str(config["name"]), fix=words)
        if _is(answer.error, NO_CLUSTER):
            lone = f"nats-server {self._session.server} is in no cluster"
            words = f"{lone}, which replicas={options.replicas} needs: leave that out"
            raise NegotiationRefused("STREAM", str(config["name"]), fix=words)
        self._good(answer, f"stream {config['name']}")
        return str(config["name"])

    def in_the_way(self, topic: str) -> str:
        """Why no stream can be made for ``topic``, which none keeps: its name is taken. Empty: it is free."""
        found = self.stream(mapped(topic))
        if found is None:
            return ""
        fix = "it is a mirror, which takes no messages: name another topic" if found.config.mirror else "add that to its subjects"
        return f"there is such a stream, and it does not keep subject {topic}: {fix}"

    def account(self) -> Account:
        """Without limits where our user may not ask."""
        try:
            return self._good(self._ask(Account, "INFO", {}), "account")
        except BrokerError:
            return Account()

    def _let_settle(self, name: str) -> None:
        """Before 2.10.2 two that make one stream at the same moment may each get one, of which one is lost with its consumers and
        all that was stored in it (3 of 350 times on 2.9.10): nobody uses it until that has been decided."""
        if version_of(self._session.info) >= ONE_OF_A_NAME:
            return
        made = self.stream(name)
        while made is not None and abs(time.time() - made.created.timestamp()) < FRESH:
            gevent.sleep(SETTLING)
            before, made = made, self.stream(name)
            if made is not None and made.created == before.created:
                return

    def streams(self) -> Iterator[Stream]:
        """All of them."""
        for entry in self._pages("STREAM.LIST", "streams", {}):
            yield msgspec.convert(entry, Stream, strict=False)

    def topics(self) -> set[str]:
        """The subjects that streams keep: those that they name, and of wildcards those of which there are messages."""
        found: set[str] = set()
        for stream in self.streams():
            exact = {one for one in stream.config.subjects if "*" not in one and ">" not in one}
            found |= exact
            if any(one not in exact and not one.startswith(LATER) for one in stream.config.subjects):
                info = self.stream(stream.config.name, ">")
                found |= set((info and info.state.subjects) or ())
        return {one for one in found if not one.startswith(LATER)}

    @property
    def _schedules(self) -> bool:
        return version_of(self._session.info) >= SCHEDULES

    # --- consumers

    def consumer(self, stream: str, name: str) -> Consumer | None:
        """None where there is none."""
        answer = self._ask(Consumer, f"CONSUMER.INFO.{stream}.{name}", {})
        if answer.error is not None and answer.error.err_code in (NO_CONSUMER, NO_STREAM):
            return None
        return self._good(answer, f"consumer {stream}/{name}")

    def ensure_consumer(self, stream: str, topic: str, channel: str, options: Options) -> Consumer:
        """The durable of ``channel``, made if there is none."""
        name = mapped(channel)
        if (found := self.consumer(stream, name)) is not None:
            return found
        request = {"stream_name": stream, "config": consumer_config(topic, name, options), "action": "create"}
        answer = self._ask(Consumer, f"CONSUMER.DURABLE.CREATE.{stream}.{name}", request)
        if _is(answer.error, CONSUMER_EXISTS) and (found := self.consumer(stream, name)):
            return found
        if answer.error is not None and (words := _NO_MORE.get(answer.error.err_code)):
            raise NegotiationRefused("CONSUMER", name, fix=f"stream {stream} {words}")
        return self._good(answer, f"consumer {stream}/{name}")

    def consumers(self, stream: str) -> list[str]:
        """The names of those of ``stream``."""
        return list(self._pages(f"CONSUMER.NAMES.{stream}", "consumers", {}))

    def all_consumers(self, stream: str) -> list[Consumer]:
        """Those of ``stream``, with their configurations."""
        found = (self.consumer(stream, name) for name in self.consumers(stream))
        return [consumer for consumer in found if consumer is not None]

    # --- asking

    def _pages(self, what: str, field: str, body: dict[str, object]) -> Iterator[Any]:
        at = 0
        while True:
            page = self._good(self._ask(_Page, what, body | {"offset": at}), what)
            entries = getattr(page, field) or []
            yield from entries
            at += len(entries)
            if not entries or at >= page.total:
                return

    def _ask(self, kind: type[Answer], what: str, body: Mapping[str, object]) -> Answer:
        answer = self._session.ask(f"$JS.API.{what}".encode(), msgspec.json.encode(body), self._timeout or self._session.patience)
        if headers.status(answer.headers)[0] == 503:
            raise TryLater(
                "503", f"nats-server {self._session.server} has no JetStream that answers {what}: start it with --jetstream"
            )
        try:
            return msgspec.json.decode(answer.body, type=kind, strict=False)
        except UNREADABLE as error:
            raise ProtocolError(
                f"nats-server {self._session.server} answered {what} with {answer.body[:80]!r}: {error}"
            ) from None

    def _good(self, answer: Answer, what: str) -> Answer:
        if answer.error is None:
            return answer
        refused = answer.error
        where = f"{refused.description} ({what}, nats-server {self._session.server})"
        if refused.err_code in _DISABLED:
            raise TryLater(str(refused.err_code), where)
        raise BrokerError(str(refused.err_code), where, fatal=False)


def _nanoseconds(time: datetime) -> int:
    return (time - NEVER) // timedelta(microseconds=1) * 1000


def _is(error: Refusal | None, code: int) -> bool:
    return error is not None and error.err_code == code


def version_of(info: wire.Info) -> tuple[int, ...]:
    """``2.10.14`` as numbers; empty for what is no version, which is taken for an old one."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", info.version)
    return tuple(map(int, numbers.groups())) if numbers else ()


def stream_config(topic: str, options: Options, schedules: bool) -> dict[str, object]:
    """What is made where no stream keeps ``topic``. Limits there are none: nothing is dropped that was not handled."""
    config: dict[str, object] = {
        "name": mapped(topic), "subjects": [topic], "retention": options.retention, "storage": "file", "discard": "new",
        "num_replicas": options.replicas, "duplicate_window": 120 * NANO,
    }  # fmt: skip
    if schedules:
        # beside discard=new they are refused
        config |= {"subjects": [topic, f"{LATER}{topic}.*"], "allow_msg_schedules": True, "discard": "old"}
    return config


def consumer_config(topic: str, name: str, options: Options) -> dict[str, object]:
    """What is made for a channel that has none. How often a message is delivered is counted here, and limited nowhere."""
    ends = {"inactive_threshold": round(UNUSED * NANO)} if name.endswith(EPHEMERAL) else {}
    return ends | {
        "durable_name": name, "name": name, "ack_policy": "explicit", "ack_wait": round(options.ack_wait * NANO),
        "max_deliver": -1,
        "max_ack_pending": options.max_ack_pending, "filter_subject": topic, "deliver_policy": "all", "replay_policy": "instant",
        "max_waiting": 512,
    }  # fmt: skip
