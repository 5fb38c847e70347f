"""What a heartbeat says of us: which groups read which topics here. No I/O here.

POP needs none of it. Without it, no console of RocketMQ would show who reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class Subscription(NamedTuple):
    """In RocketMQ's own names. ``tags``: as ``a||b``; empty: all."""

    topic: str
    group: str
    tags: str = ""


def heartbeat(client: str, subscriptions: Iterable[Subscription]) -> bytes:
    """The body of HEART_BEAT."""
    groups: dict[str, list[Subscription]] = {}
    for one in dict.fromkeys(subscriptions):
        groups.setdefault(one.group, []).append(one)
    consumers = [_consumer(group, its) for group, its in groups.items()]
    return msgspec.json.encode({"clientID": client, "producerDataSet": [], "consumerDataSet": consumers})


def _consumer(group: str, its: Iterable[Subscription]) -> dict[str, object]:
    return {
        "groupName": group, "consumeType": "CONSUME_POP", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [_data(one) for one in its], "unitMode": False,
    }  # fmt: skip


def _data(one: Subscription) -> dict[str, object]:
    tags = one.tags.split("||") if one.tags else []
    return {
        "topic": one.topic, "subString": one.tags or "*", "tagsSet": tags, "codeSet": [java_hash(tag) for tag in tags],
        "subVersion": 0, "expressionType": "TAG", "classFilterMode": False,
    }  # fmt: skip


def java_hash(text: str) -> int:
    """``String.hashCode``: over UTF-16, in 32 bits."""
    units = text.encode("utf-16-be")
    found = 0
    for at in range(0, len(units), 2):
        found = (31 * found + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return found - 2**32 if found >= 2**31 else found
