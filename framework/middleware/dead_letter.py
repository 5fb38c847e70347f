"""The dead letter policy: a message that cannot be handled is published to ``<topic>.<channel>.dead``, then finished.

The dead letter is stored before the original is finished, so a crash between the two leaves a copy too many, never one too few.
"""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec

from framework.errors import BadMessage, HandlerTimeout, Reject
from framework.handler import HandlerSpec
from framework.message import Message
from framework.middleware.outcome import DEAD, Outcome
from framework.middleware.retry import describe, encodable
from framework.names import EPHEMERAL, MAX_LENGTH

log = logging.getLogger(__name__)

SUFFIX = ".dead"
LATER = ".later"
UNLIMITED = 1 << 20
"""Attempts that no message may have, whatever its handler allows."""
TRACEBACK_LIMIT = 8000
"""Characters of traceback, the end of it, that a dead letter carries."""

Publish = Callable[[str, bytes], None]
Bury = Callable[[Message, str, BaseException | None], Outcome]


def compile_dead_letter(
    spec: HandlerSpec, call: Callable[[Message], None], bury: Bury, beyond: Callable[[Message], Outcome]
) -> Callable[[Message], Outcome]:
    """``call`` for messages with attempts left; the others are ``beyond``'s to judge, and those it rejects are buried."""
    limit = spec.max_attempts or UNLIMITED

    def handle(message: Message) -> Outcome:
        if message.attempts > limit:  # before the function runs: a message that kills the process counts as well
            return beyond(message)
        try:
            call(message)
        except Reject as error:
            return bury(message, describe(error), error)
        except HandlerTimeout as error:
            if not dies_of_time(message, spec):
                raise
            return bury(message, describe(error), error)
        return None

    return handle


def dies_of_time(message: Message, spec: HandlerSpec) -> bool:
    """Whether a message that ran out of time shall be buried. One that was given back already (at a stop) comes again."""
    return spec.on_timeout == "reject" and not message.settled


def compile_bury(spec: HandlerSpec, publish: Publish) -> Bury:
    """Stores the dead letter. What ``publish`` raises comes out: the caller gives the message back, it is not lost."""
    topic = topic_name(spec.topic, spec.channel)

    def bury(message: Message, reason: str, error: BaseException | None) -> Outcome:
        _publish_first_that_fits(publish, topic, message, letters(message, reason, error))
        log.warning(
            "handler %s: message %s given up at attempt %d: %s; dead letter in topic %s",
            spec.name, message.id.decode(errors="replace"), message.attempts, reason, topic,
        )  # fmt: skip
        return DEAD

    return bury


def exhausted(spec: HandlerSpec) -> str:
    """The reason of a message that has no attempts left."""
    return f"delivered more than max_attempts={spec.max_attempts} times"


def topic_name(topic: str, channel: str, suffix: str = SUFFIX) -> str:
    """The dead letter topic of a channel: ``<topic>.<channel>.dead``, within the 64 characters of a name.

    A longer one is cut and told apart by a hash. Dead letters of what is ephemeral are kept all the same.
    """
    name = f"{topic.removesuffix(EPHEMERAL)}.{channel.removesuffix(EPHEMERAL)}"
    if len(name) + len(suffix) > MAX_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:10]
        name = f"{name[: MAX_LENGTH - len(suffix) - len(digest) - 1]}-{digest}"
    return name + suffix


def letters(message: Message, reason: str, error: BaseException | None) -> Iterator[bytes]:
    """The dead letter in ever shorter forms: a JSON line and the raw body, without the traceback, the raw body alone."""
    header = {
        "topic": message.topic,
        "channel": message.channel,
        "id": message.id.decode(errors="replace"),
        "node": message.node,
        "attempts": message.attempts,
        "reason": reason,
        "published": message.published.isoformat(),
        "dead": datetime.now(UTC).isoformat(),
        "traceback": _traceback(error),
    }
    yield msgspec.json.encode(header) + b"\n" + message.body
    short = {**header, "reason": reason[:80]}
    del short["traceback"]
    yield msgspec.json.encode(short) + b"\n" + message.body
    yield message.body


def _traceback(error: BaseException | None) -> str:
    return encodable("".join(traceback.format_exception(error))[-TRACEBACK_LIMIT:]) if error is not None else ""


def _publish_first_that_fits(publish: Publish, topic: str, message: Message, forms: Iterator[bytes]) -> None:
    refused: BadMessage | None = None
    for form in forms:
        try:
            return publish(topic, form)
        except BadMessage as error:  # over the broker's size: the next form is shorter
            refused = error
    assert refused is not None
    raise refused
