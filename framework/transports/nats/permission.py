"""What our user may not say, as far as that keeps a handler from its messages: told before the first of them has come.

An acknowledgement that a server refuses is the worst of it: the message comes again and again. Source: the authorization chapter
of the NATS documentation; a server that has answered PING has answered all before it.
"""

from __future__ import annotations

from collections.abc import Iterator

from framework.errors import AccessDenied
from framework.transports.nats import wire
from framework.transports.nats.place import acks
from framework.transports.nats.question import ANSWERS, Telling, objection


def obstacles(session: Telling, stream: str, consumer: str) -> Iterator[str]:
    """Sentences. What is said to find out does nothing: a pull that nobody waits for, and a touch of no message."""
    pull = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
    if words := _objection(session, pull):
        yield f"{words}: nothing can be pulled, let this user publish to {pull}"
    yield from filter(None, [unsettled(session, stream, consumer)])


def unsettled(session: Telling, stream: str, consumer: str) -> str:
    """Why nothing can be settled; empty: it can."""
    subjects = acks(stream, consumer)
    words = _objection(session, f"{subjects}0.0.0.0.0")
    fix = f"nothing can be acknowledged, and all would come again and again: let this user publish to {subjects}>"
    return f"{words}: {fix}" if words else ""


def hears(session: Telling, inbox: bytes, timeout: float) -> None:
    """Raises AccessDenied where our user may not subscribe to ``inbox``, which it has just asked for; BrokerUnreachable."""
    if words := objection(session, inbox, b"", timeout):
        raise AccessDenied(words, fix=ANSWERS)


def _objection(session: Telling, subject: str) -> str:
    return objection(session, subject.encode(), wire.pub(subject.encode(), b"+WPI"))
