"""Every error that the framework raises on purpose; each message names the input and the fix."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any

from framework.durations import are_seconds

_SHOWN = 100


class FrameworkError(Exception):
    """The base of all of them."""


class WrongUse(FrameworkError):
    """The caller's mistake: a bad name, option, setting or URL. The command line exits with 2."""


class BadName(WrongUse):
    """A topic or channel name that no nsqd would take."""


class BadHandler(WrongUse):
    """A handler that cannot work as it is declared: raised when its module is imported."""


class BadModule(WrongUse):
    """A module that cannot be imported, or that declares no handler."""


class BadInput(WrongUse):
    """An input file that is missing, empty or not what a verb can read. Nothing was published."""


class BadSetting(WrongUse):
    """A setting that is unknown, or whose value is not of its type or range."""


class BadMessage(WrongUse):
    """A body that a broker would refuse: empty, or over its maximum. Nothing was sent."""


class BrokerUnreachable(FrameworkError):
    """No broker answered within the deadline. The command line exits with 3."""


class SomeUnreachable(BrokerUnreachable):
    """Some nodes are down, or do not answer for the moment; the others did."""

    def __init__(self, message: str, down: Iterable[str], answers: Any) -> None:
        super().__init__(message)
        self.down = frozenset(down)
        self.answers = answers
        """What the call would have returned, were there no others."""


class BrokerRefuses(BrokerUnreachable):
    """Every broker answered, and rejects every client with these credentials or options (TLS, AUTH): asking again gets the same
    answer."""


class TlsFailed(BrokerUnreachable):
    """No TLS where it was asked for: not granted, or a certificate that is not trusted. Only IDENTIFY was sent in clear."""


class ProtocolError(FrameworkError):
    """The peer sent bytes that its protocol does not allow. The connection is closed."""


class BrokerError(FrameworkError):
    """The broker answered with an error; ``code`` and ``words`` are its own.

    ``fatal``: whether the broker closes the connection after it. ``fix``: what a person can do about it, where that is known;
    it ends the sentence. Each subclass stands for one kind of fix.
    """

    def __init__(self, code: str, words: str = "", *, fatal: bool = True, fix: str = "") -> None:
        super().__init__(f"{code} {words}".strip() + (f": {fix}" if fix else ""))
        self.code = code
        self.words = words
        self.fatal = fatal
        self.fix = fix


class LeaseOver(BrokerError):
    """A message was settled or touched too late: the broker delivers it again. Handle it faster, or ask for a longer lease."""


class TryLater(BrokerError):
    """The broker could not do it just now (it is exiting, or full). The framework tries again by itself."""


class AccessDenied(BrokerError):
    """The broker rejects the secret, or the secret does not permit what was asked for."""


class NegotiationRefused(BrokerError):
    """The broker does not take the connection as it was asked for: change the options of its URL, or its flags."""


REFUSALS: tuple[type[FrameworkError], ...] = (TlsFailed, AccessDenied, NegotiationRefused)
"""How one connection fails to a broker that rejects its credentials or options. Waiting does not mend it, unless the broker has
accepted them before."""


def cannot_be_reached(broker: str, error: Exception) -> BrokerUnreachable:
    """For a connection that could not be made because of ``error``."""
    fix = "; raise the limit of open files (ulimit -n)" if few_files(error) else ""
    return BrokerUnreachable(f"{broker} cannot be reached: {error}{fix}")


def few_files(error: BaseException | None) -> bool:
    """Whether it is, or came of, this process or this machine being allowed to open no more files."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error is not None and error.errno in (errno.EMFILE, errno.ENFILE)


def words_of(node: str, error: Exception) -> str:
    """What ``error`` says, with the name of ``node``: a broker's own words do not say which broker spoke."""
    words = str(error)
    return words if node in words else f"{node}: {words}"


def shown(value: object) -> str:
    """``value``, for a sentence: in 100 characters, and also where it cannot show itself, as a row without its session."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


class RequestRefused(BrokerError):
    """The broker takes no such topic, channel or body: change what was asked for, or the broker's limits."""


class CommandRefused(BrokerError):
    """A command that the broker did not expect or understand: a fault of this library, or a broker of another kind."""


class PublishError(FrameworkError):
    """A publish that did not end with the broker's OK.

    ``stored`` is False when the broker certainly has not stored the messages. It is None when the connection ended between
    sending and the answer: publishing again may then duplicate them. It is True when the broker has stored the messages but
    says that it will not deliver them by itself.
    """

    def __init__(self, message: str, *, stored: bool | None = False) -> None:
        super().__init__(message)
        self.stored = stored


class MessageRefused(BadMessage, PublishError):
    """The broker itself refused a body, by a limit that was not known here. Nothing of that request is stored."""


class AlreadySettled(FrameworkError):
    """A message was finished or requeued twice, or after its lease was lost."""

    @classmethod
    def of(cls, message_id: bytes) -> AlreadySettled:
        """For a message that is not in flight any more."""
        return cls(f"message {message_id.decode(errors='replace')} was finished or requeued before, or its lease was lost")


class Retry(Exception):
    """Raised by a handler: give the message back, to be delivered again after ``delay`` seconds.

    Without a delay the handler's own schedule decides (exponential, full jitter). A delay that is longer than the broker's
    longest is kept all the same. ``count=False``: it uses up no attempt, however often it is raised. This is for a message that
    only has to wait: for a rate limit, an opening hour, another message.
    """

    reason = ""
    delay: float | None = None  # these three also of an app's subclass whose __init__ calls no other
    count = True

    def __init__(self, reason: str = "", *, delay: float | None = None, count: bool = True) -> None:
        _check_delay("Retry", delay)
        super().__init__(reason)
        self.reason = reason
        self.delay = delay
        self.count = count


class Backoff(Exception):
    """Raised by a handler: what it depends on is down. Its message is given back, and the handler gets no others for a while.

    Then it gets single messages to try. A try that does not fail helps to end the pause; one that fails makes it longer.
    ``delay``: seconds that the pause lasts at least.
    """

    reason = ""
    delay: float | None = None

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        _check_delay("Backoff", delay)
        super().__init__(reason)
        self.reason = reason
        self.delay = delay


def _check_delay(name: str, delay: float | None) -> None:
    """Raises WrongUse for what is no number of seconds; NaN and infinity are none."""
    if delay is not None and not are_seconds(delay):
        raise WrongUse(f"{name}(delay={shown(delay)}): the delay is a number of seconds and cannot be negative")


class Reject(Exception):
    """Raised by a handler: never deliver this message again; it goes to the dead letter topic."""

    reason = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Skip(Exception):
    """Raised by a middleware in place of its call, or by a handler: the message needs nothing more, and is finished."""

    reason = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class UndecodablePayload(Reject):
    """The body is not what the handler's annotation says. The message goes to the dead letter topic."""


class HandlerTimeout(BaseException):
    """Raised inside a handler that has run longer than its ``timeout``, or is to end because its worker stops.

    It is no Exception, so that ``except Exception`` in a handler, or in what it calls, does not swallow it."""
