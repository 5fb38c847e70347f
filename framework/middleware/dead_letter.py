"""The dead letter policy: a message that cannot be handled is published to ``<topic>.<channel>.dead``, then finished.

The dead letter is stored before the original is finished, so a crash between the two leaves a copy too many, never one too few.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec

from framework.errors import BadMessage, HandlerTimeout, ProtocolError, Reject, Skip
from framework.handler import HandlerSpec
from framework.headers import without_surrogates
from framework.message import Message, Unreadable
from framework.middleware.around import Tell, nobody
from framework.middleware.failures import Note, ignore
from framework.middleware.outcome import DEAD, UNLIMITED, Dead, Outcome, Requeue
from framework.middleware.retry import Failed, describe, fault_of, is_for_the_process, trace_of
from framework.names import EPHEMERAL, MAX_LENGTH
from framework.observe import hublog
from framework.observe.logging import encodable, scrub

log = hublog.get(__name__)

SUFFIX = ".dead"
TRACEBACK_LIMIT = 8000
"""Characters of traceback, the end of it, that a dead letter carries."""
WORDS_LIMIT = 2000
"""Of these, what each exception says has no more: one that holds a whole body would leave no frame."""

Publish = Callable[[str, bytes], None]
GiveUp = Callable[..., Outcome]
"""A message, and what it dies of (None: nobody is left to say) -> Dead, or another outcome where its letter cannot be stored.
With ``told=True`` the log has the traceback already."""
REMEMBERED = 1000
"""Messages of a handler whose last failure is kept in mind, because their letters could not be written then."""


def compile_dead_letter(
    spec: HandlerSpec, call: Callable[[Message], None], give_up: GiveUp, retry: Failed, tell: Tell = nobody, *,
    packed: bool = False,
) -> Callable[[Message], Outcome]:  # fmt: skip
    """``call`` for messages with attempts left; the others are dead-lettered, and those that it rejects.

    ``retry`` has whatever else is raised; ``tell`` hears of all that is. One function for all of it: a call around each call was
    seen to take 25 ns, and one that only hears of failures 200. ``packed``: some may be ``Unreadable``, which fail uncalled."""
    limit = spec.max_attempts or UNLIMITED

    def handle(message: Message) -> Outcome:
        try:
            if packed and isinstance(message, Unreadable):
                raise ProtocolError(message.why)
            if message.attempts > limit:  # before the function runs: a message that kills the process counts as well
                return give_up(message, None)
            try:
                try:
                    call(message)
                except BaseException as error:
                    tell(message, error)
                    raise
            except Reject as error:
                return give_up(message, error)
            except HandlerTimeout as error:
                if not dies_of_time(message, spec):
                    raise
                return give_up(message, error)
            except Skip:
                pass
        except BaseException as error:  # sys.exit() or a gevent.Timeout in a handler fails the message, not the worker
            return retry(message, error)
        return None

    return handle


def dies_of_time(message: Message, spec: HandlerSpec) -> bool:
    """Whether a message that ran out of time shall be a dead letter. One that was given back already (at a stop) comes again."""
    return spec.on_timeout == "reject" and not message.settled


def compile_give_up(spec: HandlerSpec, publish: Publish, again: Failed, note: Note = ignore) -> GiveUp:
    """Stores the dead letter. A message whose letter cannot be stored is not lost: it comes again, by ``again``.

    Where the lease of the message is known to be lost, no letter is written: the message is delivered again, and the worker
    that gives it up then writes the letter.
    """
    topic = topic_name(spec.topic, spec.channel)
    last_words: dict[tuple[str, bytes], tuple[str, str]] = {}

    def give_up(message: Message, error: BaseException | None, *, told: bool = False) -> Outcome:
        if message.settled:
            return Requeue(0.0) if error is None else again(message, error)
        if error is not None:  # one that is false is an exception as any other
            reason, trace = describe(error), traceback_of(error)
        else:
            reason, trace = last_words.pop(_key(message), (unanswered(spec), ""))
        try:
            _publish_first_that_fits(publish, topic, message, letters(message, reason, trace))
        except BaseException as unpublished:  # its handler's time may be over meanwhile
            if is_for_the_process(unpublished):
                raise
            while len(last_words) >= REMEMBERED:
                del last_words[next(iter(last_words))]
            last_words[_key(message)] = reason, trace
            return again(message, unpublished)
        log.error(
            "handler %s: message %s given up at attempt %d: %s; dead letter in topic %s",
            spec.name, message.id.decode(errors="replace"), message.attempts, reason, topic,
            exc_info=trace_of(error) if error is not None and not told else None,
        )  # fmt: skip
        note(message, reason, "dead", error)
        return DEAD if error is None or isinstance(error, Reject) else Dead(*fault_of(error))

    return give_up


def unanswered(spec: HandlerSpec) -> str:
    """The reason of a message that has no attempts left, although none of them reported a failure."""
    return (
        f"no answer from the last of max_attempts={spec.max_attempts} attempts: its worker was killed, its lease was over, "
        "or the limit was higher then"
    )


def _key(message: Message) -> tuple[str, bytes]:
    return message.node, message.id


def topic_name(topic: str, channel: str, suffix: str = SUFFIX) -> str:
    """The dead letter topic of a channel: ``<topic>.<channel>.dead``, within the 64 characters of a name.

    A longer one is cut and told apart by a hash. Dead letters of what is ephemeral are kept all the same.
    """
    name = ".".join(lasting(topic, channel))
    if len(name) + len(suffix) > MAX_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:10]
        name = f"{name[: MAX_LENGTH - len(suffix) - len(digest) - 1]}-{digest}"
    return name + suffix


def lasting(topic: str, channel: str) -> tuple[str, str]:
    """The owner of dead letters: the names without ``#ephemeral``, which changes nothing about where the letters are."""
    return topic.removesuffix(EPHEMERAL), channel.removesuffix(EPHEMERAL)


def letters(message: Message, reason: str, trace: str) -> Iterator[bytes]:
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
        "traceback": trace,
        **({"headers": without_surrogates(message.headers)} if message.headers else {}),
    }
    yield msgspec.json.encode(header) + b"\n" + message.body
    short = {**header, "reason": reason[:80]}
    del short["traceback"]
    yield msgspec.json.encode(short) + b"\n" + message.body
    yield message.body


def traceback_of(error: BaseException) -> str:
    try:
        return encodable("".join(map(_bounded, traceback.format_exception(error)))[-TRACEBACK_LIMIT:])
    except Exception as odd:  # one of its causes fails when it is looked at
        return f"(its traceback cannot be had: {describe(odd)})"


def _bounded(part: str) -> str:
    """A frame, or what an exception says, without the secrets of URLs, which are found only in whole ones."""
    clean = scrub(part)
    return clean if len(clean) <= WORDS_LIMIT else f"{clean[:WORDS_LIMIT]}…\n"


def _publish_first_that_fits(publish: Publish, topic: str, message: Message, forms: Iterator[bytes]) -> None:
    refused: BadMessage | None = None
    for form in forms:
        try:
            return publish(topic, form)
        except BadMessage as error:  # over the broker's size: the next form is shorter
            refused = error
    assert refused is not None
    raise refused
