"""The properties of a message, as text and as names and values, and several messages as the body of one request. No I/O here.

Source: MessageDecoder and MessageConst of RocketMQ 5.3.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from framework.errors import BadMessage

MAX_PROPERTIES: Final = 31_000
"""Bytes that a publisher may give. The broker stores up to 32,767, with our id and those that it adds whenever a message is
delayed or comes again. They have 1,400 bytes at most, with names of 127 characters of topics, groups, brokers and clusters.
Where they are too long, 5.3.3 refuses by PULL what is sent back, and never delivers by POP what was requeued."""
TAGS, KEYS, UNIQ_KEY, POP_CK = "TAGS", "KEYS", "UNIQ_KEY", "POP_CK"
TIMER_DELAY_MS, DELAY = "TIMER_DELAY_MS", "DELAY"
EMPTY: Final = "WORKERS_EMPTY"
"""Ours: the names of headers whose value is empty. A broker drops a property that has no value, when it delivers it by POP."""
_OURS = """
WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG
CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME
INNER_NUM INNER_BASE CHECK_IMMUNITY_TIME_IN_SECONDS TRAN_PREPARED_QUEUE_OFFSET __transactionId__ TRANSACTION_CHECK_TIMES
INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME
__SHARDINGKEY PROPERTY_FORWARD_QUEUE_ID REDIRECT INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET TRACE_CONTEXT TIMER_DELAY_SEC
TIMER_DELIVER_MS __BORNHOST BORN_TIMESTAMP TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY
TIMER_DELAY_LEVEL TIMER_DELAY_MS __CRC32# DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID DUP_INFO
"""
RESERVED: Final = frozenset({*_OURS.split(), EMPTY})
"""Names that mean something to the broker, or that it adds."""
_TRANSIENT = "__RMQ.TRANSIENT."
_BATCHED, _INT16 = struct.Struct(">iiiii"), struct.Struct(">h")
MOST_ALIKE: Final = 500
_PLACES: Final = [b"%04X" % place for place in range(MOST_ALIKE)]


class Outgoing(NamedTuple):
    """One message of a batch."""

    body: bytes
    properties: str
    flag: int = 0


def encode(properties: Iterable[tuple[str, str]]) -> str:
    """Name and value pairs as the text that a request has. Raises BadMessage for what would end one of them early."""
    pairs = list(properties)
    for name, value in pairs:
        if not name or "\x01" in name + value or "\x02" in name + value:
            raise BadMessage(f"property {name!r:.80}: RocketMQ takes no \\x01 and no \\x02 in it, and no empty name")
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)


def decode(text: str) -> dict[str, str]:
    """Names and values; what is no pair is left out, as Java's client does."""
    try:
        found = dict([pair.split("\x01", 1) for pair in text.removesuffix("\x02").split("\x02")])
    except ValueError:  # one is none
        pass
    else:
        found.pop("", None)
        return found
    pairs = (pair.partition("\x01") for pair in text.split("\x02"))
    return {name: value for name, mark, value in pairs if mark and name}


def is_reserved(name: str) -> bool:
    """Whether it would tell the broker something else than that it is a header."""
    return name in RESERVED or name.startswith(_TRANSIENT)


def of_headers(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """What carries ``headers``, whose names have no space."""
    empty = " ".join(name for name, value in headers.items() if not value)
    given = [(name, value) for name, value in headers.items() if value]
    return [*given, (EMPTY, empty)] if empty else given


def for_handlers(properties: Mapping[str, str]) -> dict[str, str]:
    """Those that are not the broker's own: what a publisher gave, its keys and tags included."""
    found = {name: value for name, value in properties.items() if name not in RESERVED and not name.startswith(_TRANSIENT)}
    if EMPTY in properties:
        found.update(dict.fromkeys(properties[EMPTY].split(), ""))
    return found


def encode_batch(messages: Iterable[Outgoing]) -> bytes:
    """The body of SEND_BATCH_MESSAGE."""
    return b"".join(map(_batched, messages))


def encode_alike(bodies: Sequence[bytes], sizes: Sequence[int], before: str, behind: str) -> bytes:
    """As ``encode_batch``, where the properties of each message are ``before``, its place among the others in four hexadecimal
    digits, and ``behind``. ``sizes``: of the bodies, which are ``MOST_ALIKE`` at most."""
    first, last = before.encode(), behind.encode()
    size = len(first) + 4 + len(last)
    beside = _BATCHED.size + 2 + size
    between = {one: last + _BATCHED.pack(beside + one, 0, 0, 0, one) for one in set(sizes)}
    parts = [_INT16.pack(size) + first] * (4 * len(bodies))  # no Python runs for each
    parts[0::4] = map(between.__getitem__, sizes) if len(between) > 1 else list(between.values()) * len(bodies)
    parts[1::4] = bodies
    parts[3::4] = _PLACES[: len(bodies)]
    parts[0] = parts[0][len(last) :]  # nothing is before it
    parts.append(last)
    return b"".join(parts)


def _batched(message: Outgoing) -> bytes:
    properties = message.properties.encode()
    total = _BATCHED.size + len(message.body) + 2 + len(properties)
    head = _BATCHED.pack(total, 0, 0, message.flag, len(message.body))
    return b"".join((head, message.body, _INT16.pack(len(properties)), properties))
