"""The fields of what a connection asks of a broker. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from framework.errors import ProtocolError
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.queues import Place
from framework.transports.rocketmq.wire.frames import garbage, time_in
from framework.transports.rocketmq.wire.handles import Handle
from framework.transports.rocketmq.wire.stored import Record

DEAD = -1
"""In place of the level of a delay."""
MOST = 32
"""Messages that a broker gives to one PULL."""
PARKED = 50.0
"""Seconds that a PULL waits there: nobody has to wait for its answer. Java's client says 15. A thousand idle handlers have five
thousand of them, and each costs as much as one that brings something."""
EARLY = 0.5
"""Seconds that a PULL that finds nothing waits there at least, where its broker lets none wait for long."""
CHECKED = 5.0
"""Seconds between two looks of a broker at the PULLs that wait there."""
MAX_DELAY = 259_000.0
"""Seconds that a message may wait at most: a little less than the three days of timerMaxDelaySec."""
LOOKS = "TOOLS_CONSUMER"
"""The group by which single messages are looked at, where a group reads by POP: a broker in KV mode takes each PULL in a group's
name for where its next POP begins. Every broker makes this one for its own tools. Source:
PullMessageProcessor.tryCommitOffset and PopConsumerService.getPopOffset of RocketMQ 5.3.3."""
_NEVER = str(2**31 - 1)


def pop(what: Subscription, count: int, lease: float, poll: float, born: int) -> dict[str, str]:
    """POP_MESSAGE of all queues. ``lease``, ``poll``: seconds; ``born``: ms since 1970 by the broker's clock, 0: its own.

    Who has never read the topic begins with its first message (initMode 0)."""
    return {
        "consumerGroup": what.group, "topic": what.topic, "queueId": "-1", "maxMsgNums": str(count),
        "invisibleTime": str(round(lease * 1000)), "pollTime": str(round(poll * 1000)), "bornTime": str(born),
        "initMode": "0", "expType": "TAG", "exp": what.tags or "*", "order": "false",
    }  # fmt: skip


def ack(what: Subscription, handle: Handle) -> dict[str, str]:
    """ACK_MESSAGE."""
    return {
        "consumerGroup": what.group, "topic": handle.topic(what.topic, what.group), "queueId": str(handle.queue),
        "extraInfo": str(handle), "offset": str(handle.offset),
    }  # fmt: skip


def change(what: Subscription, handle: Handle, invisible: int) -> dict[str, str]:
    """CHANGE_MESSAGE_INVISIBLETIME; ``invisible``: milliseconds from now."""
    return {**ack(what, handle), "invisibleTime": str(invisible)}


def queue(what: Subscription, place: Place) -> dict[str, str]:
    """The fields of QUERY_CONSUMER_OFFSET, but one."""
    return {"consumerGroup": what.group, "topic": place.topic, "queueId": str(place.number)}


def send_back(what: Subscription, record: Record, level: int) -> dict[str, str]:
    """CONSUMER_SEND_MSG_BACK: it comes again after the delay of ``level``; ``DEAD``: never, and ``%DLQ%`` has it. Nothing else
    has the broker give it up."""
    return {
        "offset": str(record.physical_offset), "group": what.group, "delayLevel": str(level), "originMsgId": record.message_id,
        "originTopic": record.topic, "unitMode": "false", "maxReconsumeTimes": _NEVER,
    }  # fmt: skip


def commit(what: Subscription, place: Place, offset: int) -> dict[str, str]:
    """The fields of UPDATE_CONSUMER_OFFSET."""
    return queue(what, place) | {"commitOffset": str(offset)}


def pull(
    what: Subscription, place: Place, offset: int, count: int, wait: float = PARKED, *, done: int | None = None
) -> dict[str, str]:
    """The fields of PULL_MESSAGE. ``wait``: seconds that it may wait at its broker, which looks every five. ``done``: it commits
    that offset as well, before it waits."""
    tags = "" if place.topic == what.retry_topic else what.tags
    return queue(what, place) | {
        "queueOffset": str(offset), "maxMsgNums": str(count),
        "sysFlag": "6" if done is None else "7", "commitOffset": str(done or 0),
        "suspendTimeoutMillis": str(round(wait * 1000)), "subscription": tags or "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip


def look(what: Subscription, place: Place, offset: int) -> dict[str, str]:
    """The fields of PULL_MESSAGE for the one message there, whatever its tag: it does not wait, and commits nothing."""
    at_once = {"maxMsgNums": "1", "sysFlag": "4", "suspendTimeoutMillis": "0", "subscription": "*"}
    return pull(what, place, offset, 1) | at_once


class Changed(NamedTuple):
    """What the answer to a change says: of the new handle."""

    pop_time: int
    invisible: int
    revive_queue: int

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Changed:
        """Raises ProtocolError."""
        try:
            return cls(time_in(fields, "popTime"), time_in(fields, "invisibleTime"), int(fields["reviveQid"]))
        except (KeyError, ValueError):
            raise _unreadable(fields) from None


def _unreadable(fields: Mapping[str, str]) -> ProtocolError:
    return garbage("an answer to a change of a lease without what it needs", repr(dict(fields)).encode(), 0)
