"""A peer of a NATS cluster as a ``contract.Producer``: bodies checked before anything is sent, clusters tried in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from time import monotonic

import gevent

from framework import names
from framework.errors import REFUSALS, BadMessage, BrokerUnreachable, FrameworkError, PublishError, WrongUse
from framework.headers import NONE, Headers
from framework.transports.checked import check_bodies
from framework.transports.nats.headers import encode
from framework.transports.nats_route import urls
from framework.transports.nats_route.home import Home
from framework.transports.nats_route.publishes import CONNECT_TIMEOUT
from framework.transports.one_by_one import OneByOne

DEADLINE = 30.0
_AGAIN = 0.05  # seconds between two looks for a server


class RouteProducer(OneByOne):
    """Publishes to whoever has subscribed. Safe to share between greenlets and between native threads.

    ``homes()``: of the peers, in the order in which they are tried.
    """

    def __init__(self, homes: Callable[[], Sequence[Home]], *, deadline: float = DEADLINE) -> None:
        self._homes = homes
        self._deadline = deadline
        self._closed = False

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> list[PublishError | None]:  # fmt: skip
        """Return when servers with subscribers have read all of ``bodies``. Nobody keeps them: without a subscriber it waits for
        one.

        Raises BadName, BadMessage (nothing was sent), PublishError when the producer is closed.
        """
        if self._closed:
            raise PublishError("the producer is closed: make a new one")
        _check(topic, bodies, delay)
        until = monotonic() + (self._deadline if timeout is None else timeout)
        homes = self._homes()
        meet(homes, (monotonic() + until) / 2)
        block = encode(headers.items())
        _check_sizes(topic, bodies, min(home.peer.max_payload for home in homes) - len(block))
        return in_turn(homes, until, lambda home, left: _published(home, topic, block, bodies, left))

    def close(self) -> None:
        """The peers are its transport's."""
        self._closed = True


def _published(
    home: Home, topic: str, block: bytes, bodies: Sequence[bytes], timeout: float
) -> list[PublishError | None]:  # fmt: skip
    try:
        return home.call(lambda: home.peer.publish(topic.encode(), block, bodies, timeout), timeout)
    except BrokerUnreachable as error:
        return [PublishError(str(error), stored=None)] * len(bodies)


def in_turn(
    homes: Sequence[Home], until: float, store: Callable[[Home, float], list[PublishError | None]]
) -> list[PublishError | None]:  # fmt: skip
    """What ``store(home, seconds)`` answers for the first of ``homes`` that may have stored something, else for the last."""
    answers: list[PublishError | None] = []
    for tried, home in enumerate(homes):
        answers = store(home, max(0.0, until - monotonic()) / (len(homes) - tried))
        if not all(answer is not None and answer.stored is False for answer in answers):
            break
    return answers


def meet(homes: Sequence[Home], until: float) -> None:
    """Before anything is judged by what servers take: nobody knows that before. Of one that cannot be reached is told later."""
    while True:
        met = [_met(home, until) for home in homes]
        if any(met) or monotonic() >= until:
            return
        gevent.sleep(_AGAIN)


def _met(home: Home, until: float) -> bool:
    """Whether it has a route, or will have none however long we wait."""
    left = max(0.01, min(CONNECT_TIMEOUT, until - monotonic()))
    try:
        if not home.peer.routes:
            home.call(lambda: home.peer.reach(left), left)
    except FrameworkError as error:
        return isinstance(error, (*REFUSALS, WrongUse))
    return True


def _check(topic: str, bodies: Sequence[bytes], delay: float) -> None:
    """What needs no server to be known."""
    names.check("topic", topic)
    urls.accept(topic)
    if delay:
        raise BadMessage(f"topic {topic!r}: a delay of {delay!r} s: nobody keeps a message on the way between servers")
    _check_sizes(topic, bodies, sys.maxsize)


def _check_sizes(topic: str, bodies: Sequence[bytes], largest: int) -> None:
    check_bodies(topic, bodies, largest, f"the servers take up to {largest} beside the headers (their max_payload)")
