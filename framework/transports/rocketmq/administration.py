"""What a broker is asked beside messages: what it is, topics and groups, and how far groups have come. Blocks its greenlet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

import gevent
import msgspec

from framework.decoding import prepared
from framework.errors import FrameworkError
from framework.transports.rocketmq.routes import READABLE, WRITABLE, read_json
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.errors import (
    JavaException,
    NoPermission,
    NotSupported,
    QueryNotFound,
    RocketError,
    TopicMissing,
)
from framework.transports.rocketmq.wire.frames import number_in
from framework.transports.rocketmq.wire.handles import RETRY_V1, RETRY_V2, retry_topic

FIRST_5 = 413
"""The number of 5.0.0."""
QUEUES = 4
"""Of the topics that are made here, on each master."""
LIST_PATIENCE = 20.0
"""Seconds in which many topics are made."""
INDEXED = 1.0
"""Seconds."""
_OFFSETS = re.compile(rb'"brokerOffset":(\d+),"consumerOffset":(-?\d+),"lastTimestamp":\d+(?:,"pullOffset":(-?\d+))?')


@prepared
class _Table(msgspec.Struct):
    table: dict[str, str] = {}


@prepared
class _Groups(msgspec.Struct, rename="camel"):
    group_list: list[str] = []


class _Group(msgspec.Struct, rename="camel"):
    retry_queue_nums: int = 1


@prepared
class _Settings(msgspec.Struct, rename="camel"):
    subscription_group_table: dict[str, _Group] = {}


_STATS = re.compile(rb'"queueId":(\d+),"topic":"[^"]*"\}:\{"lastUpdateTimestamp":\d+,"maxOffset":(\d+),"minOffset":(\d+)')
_POPPED = re.compile(rb'"queueId":(\d{1,9}),"topic":"[^"]*"\}:\{[^{}]*"pullOffset":(\d{1,18})\b')


@dataclass(frozen=True, slots=True)
class Broker:
    """What one says of itself. ``version``: as ``5.3.3``."""

    version: str
    settings: dict[str, str]
    """Empty where we may not see them."""

    @property
    def pops(self) -> bool:
        """Whether it knows POP, as far as is known."""
        major = self.version.partition(".")[0]
        return not ((major.isdigit() and int(major) < 5) or self.version.startswith("before"))

    @property
    def timers(self) -> bool:
        """Whether it keeps every delay of a publish, as far as is known; else only its levels."""
        return self.pops and self.allows("timerWheelEnable")

    def allows(self, setting: str) -> bool:
        """Whether it is not switched off, as far as is known."""
        return self.settings.get(setting) != "false"


def look_at(session: Session) -> Broker:
    """Raises BrokerUnreachable, RocketError."""
    answer = session.ask(Request.HEART_BEAT, {}, session.nobody)  # a broker takes its time for each who subscribes
    return Broker(version_name(answer.version), _settings(session))


def version_name(number: int) -> str:
    """``5.3.3`` of 479: each release has the number after that of its snapshot, and there are ten of each minor version.

    Asking for the version by name takes a broker half a second: it counts its files as well."""
    releases, snapshot = divmod(number - FIRST_5, 2)
    if releases < -10 or snapshot:
        return f"before 4.9 ({number})" if releases < -10 else f"a snapshot ({number})"
    major, minor = divmod(50 + releases // 10, 10)
    return f"{major}.{minor}.{releases % 10}"


def _settings(session: Session) -> dict[str, str]:
    try:
        answer = session.ask(Request.GET_BROKER_CONFIG, {})
    except NoPermission:
        return {}
    pairs = (line.partition("=") for line in answer.body.decode(errors="replace").splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def make_topics(session: Session, topics: Sequence[str]) -> dict[str, FrameworkError]:
    """Each with ``QUEUES`` queues, on one master where they are not: several by one request, where it knows that. One that is
    there stays as it is. Returns why it refused some. Raises BrokerUnreachable."""
    missing = _missing(session, topics)
    if len(missing) > 1:
        with suppress(RocketError):  # of 5.3, and with rights of its own
            session.ask(Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, _list_of(missing), LIST_PATIENCE)
            # 5.3.3 ends at the first one that somebody made meanwhile, says that all is well, and makes none behind it
            missing = _missing(session, missing)
    errors: dict[str, FrameworkError] = {}
    for topic in missing:
        try:
            _make_topic(session, topic)
        except RocketError as error:
            errors[topic] = error
    return errors


def _missing(session: Session, topics: Sequence[str]) -> list[str]:
    return [topic for topic in topics if not has_topic(session, topic)]


def has_topic(session: Session, topic: str) -> bool:
    """As far as its broker says. Raises BrokerUnreachable."""
    for question in (Request.GET_TOPIC_CONFIG, Request.GET_TOPIC_STATS_INFO):  # one of 4.9 knows only the second
        try:
            session.ask(question, {"topic": topic})
        except NotSupported:
            continue
        except RocketError:
            return False
        return True
    return False


def _list_of(topics: Iterable[str]) -> bytes:
    same = {"perm": READABLE | WRITABLE, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False, "attributes": {}}
    sizes = {topic: dict.fromkeys(("readQueueNums", "writeQueueNums"), _queues_of(topic)) for topic in topics}
    return msgspec.json.encode({"topicConfigList": [{"topicName": topic, **size, **same} for topic, size in sizes.items()]})


def _queues_of(topic: str) -> int:
    """A retry topic has as many as a broker gives it."""
    return 1 if topic.startswith("%RETRY%") else QUEUES


def _make_topic(session: Session, topic: str) -> None:
    queues = str(_queues_of(topic))
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues,
        "perm": str(READABLE | WRITABLE), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    session.ask(Request.UPDATE_AND_CREATE_TOPIC, fields)


def groups_of(session: Session, topic: str) -> list[str]:
    """The consumer groups that have read ``topic``. After a heartbeat 5.3.3 names the topic itself among them."""
    found = read_json(session.ask(Request.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic}), _Groups).group_list
    return [group for group in found if group != topic]


def groups_that_drop(session: Session) -> frozenset[str]:
    """Those that have no queue for what is sent back, as far as their broker says: it drops that, and answers that all is well.
    Asked for one of them, 5.3.3 would make it where it is not. Source: AbstractSendMessageProcessor.consumerSendMsgBack.
    Raises BrokerUnreachable."""
    try:
        found = read_json(session.ask(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}), _Settings).subscription_group_table
    except RocketError:
        return frozenset()
    return frozenset(group for group, one in found.items() if one.retry_queue_nums < 1)


def waiting(session: Session, topic: str, group: str) -> int:
    """How many messages wait to be delivered to ``group``, for the first time or again."""
    _await_index(session)
    topics = [topic, *(retry_topic(topic, group, version) for version in (RETRY_V1, RETRY_V2))]
    return sum(count for one in topics for count in _waiting(session, one, group))


def unread(session: Session, topics: Iterable[str], group: str) -> int:
    """How many messages of ``topics`` lie behind the offsets that ``group``, which reads by PULL, has committed."""
    _await_index(session)
    return sum(count for topic in topics for count in _unread(session, topic, group))


def _await_index(session: Session) -> None:
    """What was stored a moment ago is counted once the broker has put it into its queues, some ms later. One that does not come
    to it is not waited for. In its first second, before it has counted anything, one answers by a NoSuchElementException."""
    until = monotonic() + INDEXED
    while monotonic() < until:
        with suppress(JavaException):
            said = read_json(session.ask(Request.GET_BROKER_RUNTIME_INFO, {}), _Table).table
            if said.get("dispatchBehindBytes", "0") == "0":
                return
        gevent.sleep(0.005)


def popped(session: Session, topic: str, group: str) -> dict[int, int]:
    """Queue -> the offset at which ``group`` goes on by POP, of a broker in KV mode: it stays when its topic is deleted. Raises
    FrameworkError."""
    answer = session.ask(Request.GET_CONSUME_STATS, {"consumerGroup": group, "topic": topic})
    return {int(queue): int(offset) for queue, offset in _POPPED.findall(answer.body)}


def _waiting(session: Session, topic: str, group: str) -> Iterator[int]:
    """A broker leaves out what ``group`` does not read there now, if it reads something else: then each queue is asked for."""
    answer = session.ask(Request.GET_CONSUME_STATS, {"consumerGroup": group, "topic": topic})
    found = _OFFSETS.findall(answer.body)
    for stored, consumed, pulled in found:
        yield max(0, int(stored) - max(int(consumed), int(pulled or 0)))
    if not found:
        yield from _unread(session, topic, group)


def _unread(session: Session, topic: str, group: str) -> Iterator[int]:
    try:
        answer = session.ask(Request.GET_TOPIC_STATS_INFO, {"topic": topic})
    except TopicMissing:
        return
    for queue, last, first in _STATS.findall(answer.body):
        yield max(0, int(last) - _consumed(session, topic, group, queue.decode(), int(first)))


def _consumed(session: Session, topic: str, group: str, queue: str, first: int) -> int:
    """The offset at which ``group`` goes on."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue, "setZeroIfNotFound": "false"}
    try:
        said = number_in(session.ask(Request.QUERY_CONSUMER_OFFSET, fields).fields, "offset")
    except QueryNotFound:
        return first
    return first if said is None else said
