"""Publishes of a peer to whoever has subscribed: they wait for a subscriber, and until each server has read what it was sent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import monotonic
from typing import NamedTuple, Protocol

import gevent
from gevent.event import Event

from framework.errors import REFUSALS, FrameworkError, PublishError, WrongUse
from framework.transports.nats_route.route import Route

CONNECT_TIMEOUT = 5.0
_LOOK = 1.0
"""Seconds after which a publish that waits for a subscriber looks again, though nothing was heard."""
WINDOW = 1000
WINDOW_BYTES = 4 * 1024 * 1024
"""What is sent, at most, before the servers have answered that they have read it."""


class Sent(NamedTuple):
    """Where one message went."""

    routes: Collection[Route]
    here: bool


class Sender(Protocol):
    """The peer. ``news`` is set whenever a route or an interest comes or goes."""

    closed: bool
    news: Event

    def reach(self, timeout: float = CONNECT_TIMEOUT) -> None: ...

    def settling(self) -> float:
        """Seconds in which other peers may still dial us."""

    def wants(self, subject: bytes) -> bool:
        """Somebody has subscribed, here or elsewhere."""

    def send(self, subject: bytes, block: bytes, body: bytes) -> Sent: ...


def publish(
    peer: Sender, subject: bytes, block: bytes, bodies: Sequence[bytes], timeout: float
) -> list[PublishError | None]:  # fmt: skip
    """Return when every server that was sent one of ``bodies`` has answered that it read it. Blocks its greenlet.

    ``block``: the headers."""
    until = monotonic() + timeout
    answers: list[PublishError | None] = []
    while len(answers) < len(bodies):
        try:
            _await_members(peer, subject, until, timeout)
        except PublishError as error:
            return answers + [error] * (len(bodies) - len(answers))
        window = _window(bodies, len(answers))
        answers += _publish_window(peer, subject, block, window, until)
    return answers


def _await_members(peer: Sender, subject: bytes, until: float, timeout: float) -> None:
    """Until somebody wants it. Raises PublishError."""
    while True:
        if peer.closed:
            raise PublishError("the producer was closed", stored=False)
        try:
            peer.reach(max(0.01, min(CONNECT_TIMEOUT, until - monotonic())))
        except FrameworkError as error:
            if isinstance(error, (*REFUSALS, WrongUse)):  # waiting does not mend it
                raise PublishError(f"no nats-server takes us: {error}", stored=False) from error
            if monotonic() >= until - 0.05:
                raise PublishError(f"no nats-server took us within {timeout:g} s: {error}", stored=False) from error
            gevent.sleep(0.05)
            continue
        peer.news.clear()
        if (settling := peer.settling()) > 0:
            gevent.sleep(settling)
        if peer.wants(subject):
            return
        if monotonic() >= until:
            words = f"nobody has subscribed to {subject.decode()} for {timeout:g} s, and the cluster keeps nothing"
            raise PublishError(words, stored=False)
        peer.news.wait(min(_LOOK, until - monotonic()))


def _publish_window(
    peer: Sender, subject: bytes, block: bytes, bodies: Sequence[bytes], until: float
) -> list[PublishError | None]:  # fmt: skip
    went = [peer.send(subject, block, body) for body in bodies]
    unread = {route for sent in went for route in sent.routes}
    lost: set[Route] = set()
    answered = Event()

    def heard(route: Route, read: bool) -> None:
        unread.discard(route)
        if not read:
            lost.add(route)
        if not unread:
            answered.set()

    for route in list(unread):
        route.ping(lambda read, route=route: heard(route, read))  # type: ignore[misc]
    if unread:
        answered.wait(max(0.0, until - monotonic()))
    lost |= unread
    return [_verdict(lost.intersection(sent.routes)) for sent in went]


def _verdict(lost: Collection[Route]) -> PublishError | None:
    if not lost:
        return None
    named = ", ".join(sorted(route.server for route in lost))
    return PublishError(f"nats-server {named} has not answered that it read it: it may have been handled", stored=None)


def _window(bodies: Sequence[bytes], begin: int) -> Sequence[bytes]:
    size, end = 0, begin
    while end < len(bodies) and end - begin < WINDOW and (size < WINDOW_BYTES or end == begin):
        size += len(bodies[end])
        end += 1
    return bodies[begin:end]
