"""What a heartbeat says of us: which groups read which topics here. No I/O here.

POP needs none of it. Without it, no console of RocketMQ would show who reads. Those who pull share queues by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec


class Subscription(NamedTuple):
    """In RocketMQ's own names. ``tags``: as ``a||b``; empty: all."""

    topic: str
    group: str
    tags: str = ""
    pulls: bool = False
    """By PULL, not by POP."""

    @property
    def tag_set(self) -> frozenset[str]:
        """Empty: all."""
        return frozenset(self.tags.split("||")) if self.tags else frozenset()

    @property
    def retry_topic(self) -> str:
        """What keeps the messages of ``group`` that were sent back: all of them, of whatever topic."""
        return f"%RETRY%{self.group}"


def heartbeat(client: str, subscriptions: Iterable[Subscription], holding: Iterable[str] = ()) -> bytes:
    """The body of HEART_BEAT. ``holding``: groups that are not subscribed to now, and of which queues are still held."""
    groups: dict[str, list[Subscription]] = {}
    for one in dict.fromkeys(subscriptions):
        groups.setdefault(one.group, []).append(one)
    consumers = [_consumer(group, its) for group, its in groups.items()]
    # By its producers a group shows who may still hold a queue: nobody else publishes under its name.
    holders = [group for group, its in groups.items() if any(one.pulls for one in its)]
    producers = [{"groupName": group} for group in dict.fromkeys([*holders, *holding])]
    return msgspec.json.encode({"clientID": client, "producerDataSet": producers, "consumerDataSet": consumers})


def _consumer(group: str, its: Sequence[Subscription]) -> dict[str, object]:
    pulls = any(one.pulls for one in its)
    data = [_data(one.topic, one.tags) for one in its]
    data += [_data(topic, "") for topic in {one.retry_topic for one in its if one.pulls}]
    return {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY" if pulls else "CONSUME_POP", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": data, "unitMode": False,
    }  # fmt: skip


def _data(topic: str, expression: str) -> dict[str, object]:
    tags = expression.split("||") if expression else []
    return {
        "topic": topic, "subString": expression or "*", "tagsSet": tags, "codeSet": [java_hash(tag) for tag in tags],
        "subVersion": 0, "expressionType": "TAG", "classFilterMode": False,
    }  # fmt: skip


def java_hash(text: str) -> int:
    """``String.hashCode``: over UTF-16, in 32 bits."""
    units = text.encode("utf-16-be")
    found = 0
    for at in range(0, len(units), 2):
        found = (31 * found + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return found - 2**32 if found >= 2**31 else found
