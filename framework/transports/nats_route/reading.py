"""Whether servers have read what was said to them: what a client publishes before that, they drop."""

from __future__ import annotations

from collections.abc import Iterable

from gevent.event import Event

from framework.transports.nats_route.route import Route


def await_readers(routes: Iterable[Route], timeout: float) -> None:
    """Return when each server has read all that was said until now. Blocks its greenlet.

    ``timeout``: seconds that a server may owe an answer. One that has owed one for as long stands still, and is waited for no
    more: neither by whoever asks now, nor by the thousand who ask after it."""
    unread, news = set(routes), Event()

    def read(route: Route) -> None:
        unread.discard(route)
        news.set()

    for route in list(unread):
        route.ping(lambda _, route=route: read(route))  # type: ignore[misc]
    while (left := max((timeout - route.owed for route in unread), default=0.0)) > 0:
        news.clear()
        news.wait(left)
