"""How many messages wait in the channels of handlers, asked of the brokers now and then, by connections of its own.

Whoever asks gets what is known, and is not kept waiting: the brokers' answers are for the next one. ``work_for`` is for those who
ask so seldom that there would always be an old answer for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import gevent
from gevent.util import wrap_errors

from framework.errors import FrameworkError
from framework.transports.contract import Transport
from framework.transports.kept import Inspectable, Kept, kept_of

log = logging.getLogger(__name__)

FRESH = 5.0
"""Seconds between two questions."""
AT_ONCE = 8
"""Channels that are asked of at a time."""

Channel = tuple[str, str]


class Backlog:
    """Of channels on what ``opened()`` opens, once. All of it is called on one hub, which need not be the worker's."""

    def __init__(self, opened: Callable[[], Sequence[Transport]]) -> None:
        self._channels: list[Channel] = []
        self._opened = opened
        self._transports: Sequence[Transport] | None = None
        self._asking: gevent.Greenlet | None = None
        self._failing = False
        self.asked_at = float("-inf")
        """When the last answer came, monotonic."""
        self.kept: dict[Channel, dict[str, Kept]] = {}
        """Channel -> node -> what it keeps; empty while a broker cannot be asked."""
        self.empty_at: dict[Channel, float] = {}
        """When a channel was seen empty last, seconds since 1970."""
        self._since = time.time()

    def refresh(self, channels: Iterable[Channel]) -> None:
        """Ask again, of ``channels``, unless what is known is fresh."""
        wanted = set(channels)
        new = wanted.difference(self._channels)
        self._channels = sorted(wanted)
        if self._asking is None and (new or self._is_old):
            self._asking = gevent.spawn(self._ask)

    def work_for(self, topic: str, channel: str, later: str, seconds: float) -> int | None:
        """How many messages could be delivered for ``channel`` at this moment or are in flight, those included that waited in the
        topic ``later`` and are due. None where the brokers have not answered within ``seconds``.

        Nothing of ``later`` counts on brokers that do not tell what is due from what still waits. Only this channel is asked of:
        for a thousand of them the answers take longer than a caller waits."""
        asking = [
            gevent.spawn(wrap_errors(Exception, self._work), topic, channel),
            gevent.spawn(wrap_errors(Exception, self._due), later, channel),
        ]
        gevent.joinall(asking, seconds)
        counts = [one.value for one in asking]
        return sum(counts) if all(isinstance(one, int) for one in counts) else None

    def _work(self, topic: str, channel: str) -> int:
        told = [kept_of(one, topic, channel) for one in self.transports()]
        return sum(one.waiting + one.in_flight for nodes in told for one in nodes.values())

    def _due(self, topic: str, channel: str) -> int:
        told = [kept_of(one, topic, channel) for one in self.transports() if isinstance(one, Inspectable)]
        return sum(one.waiting for nodes in told for one in nodes.values())

    @property
    def _is_old(self) -> bool:
        return time.monotonic() - self.asked_at > FRESH

    def transports(self) -> Sequence[Transport]:
        """What it asks; opened by the first who needs it."""
        if self._transports is None:
            self._transports = self._opened()
        return self._transports

    @property
    def counts(self) -> dict[Channel, dict[str, int]]:
        """Channel -> node -> messages."""
        return {channel: {node: one.total for node, one in nodes.items()} for channel, nodes in self.kept.items()}

    def age_at_most(self, channel: Channel, started: float) -> float:
        """Seconds that the oldest message may have waited: since the one was published that was ``started`` last, and since there
        was none. 0 where nothing waits."""
        if not _total(self.kept.get(channel, {})):
            return 0.0
        return max(0.0, time.time() - max(started, self.empty_at.get(channel, self._since if not started else 0.0)))

    def _ask(self) -> None:
        try:
            self.transports()
            at = time.time()
            kept: dict[Channel, dict[str, Kept]] = {}
            for first in range(0, len(self._channels), AT_ONCE):
                some = self._channels[first : first + AT_ONCE]
                asked = {one: gevent.spawn(wrap_errors(Exception, self._of_channel), one) for one in some}
                gevent.joinall(list(asked.values()))
                for one, greenlet in asked.items():
                    if isinstance(greenlet.value, Exception):
                        raise greenlet.value
                    kept[one] = greenlet.value
            self.kept, self.asked_at = kept, time.monotonic()
            self.empty_at |= {one: at for one, nodes in kept.items() if not _total(nodes)}
            self._failing = False
        except Exception as error:
            if not self._failing:
                self._failing = True
                log.warning("backlogs are not known while a broker cannot be asked: %s", error, exc_info=_trace_of(error))
            self.kept = {}
            self.asked_at = time.monotonic()
        finally:
            self._asking = None

    def _of_channel(self, channel: Channel) -> dict[str, Kept]:
        found: dict[str, Kept] = {}
        for transport in self._transports or ():
            found |= kept_of(transport, *channel)
        return found


def _total(nodes: dict[str, Kept]) -> int:
    return sum(one.total for one in nodes.values())


def _trace_of(error: Exception) -> Exception | None:
    return None if isinstance(error, FrameworkError) else error
