"""Drops messages that are older than their topic may keep them, in rounds, and reports how many. Topics without a limit cost
nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

import gevent

from framework.nsqd.channel import Channel
from framework.nsqd.pertopic import PerTopic
from framework.nsqd.port import Port
from framework.nsqd.topic import Topic

_ROUND_SECONDS = 1.0
_READ_SECONDS = 0.005
"""How often it is seen whether the log has given the next messages."""
_SAY_SECONDS = 60.0


class Expiry:
    """One nsqd's. What is in flight or deferred goes when it comes back."""

    def __init__(self, topics: Mapping[str, Topic], ages: PerTopic[float], port: Port, save: Callable[[], None]) -> None:
        """``save`` returns when what changed is saved."""
        self._topics = topics
        self._ages = ages
        self._port = port
        self._save = save
        self._counted = WeakKeyDictionary[Channel, int]()
        self._unsaid: dict[str, int] = {}
        self._said = -math.inf

    def run(self) -> None:
        """Without end."""
        while True:
            gevent.sleep(_ROUND_SECONDS)
            for topic in list(self._topics.values()):
                if (age := self._ages.of(topic.name)) is not None and not topic.deleted:
                    self._expire(topic, age)
            self._say()

    def _expire(self, topic: Topic, age: float) -> None:
        count = 0
        while (cutoff := self._cutoff(age)) and (found := topic.expire(cutoff)):
            count += found
            if not topic.ephemeral:
                self._save()
        for channel in list(topic.channels.values()):
            count += self._expire_channel(channel, age)
        if count:
            self._unsaid[topic.name] = self._unsaid.get(topic.name, 0) + count

    def _expire_channel(self, channel: Channel, age: float) -> int:
        """Returns how many were dropped since the last round, those too that came back in between."""
        until = time.monotonic() + _ROUND_SECONDS
        while time.monotonic() < until:
            if not channel.expire(self._cutoff(age)) and (channel.loaded() or not channel.backlog.waiting):
                break
            gevent.sleep(_READ_SECONDS)
        if channel.retries.ready and not channel.retries.ready[0].ts:
            channel.fetch()  # when it was published, the log knows
        count = channel.expired_count - self._counted.get(channel, 0)
        self._counted[channel] = channel.expired_count
        return count

    def _cutoff(self, age: float) -> int:
        """In ns since 1970, for use at once, as the clock may be set meanwhile; 0: nothing is old. For as long as ``age`` after
        the wall clock was set ahead, what bears an earlier time may be younger than it looks."""
        clock = self._port.clock
        return 0 if clock.now() - clock.set_ahead() < age * 1000 else self._now() - round(age * 1e9)

    def _now(self) -> int:
        """In ns. The earlier one of two clocks: setting one of them makes nothing old."""
        return min(time.time_ns(), round(self._port.clock.now() * 1e6))

    def _say(self) -> None:
        if self._unsaid and time.monotonic() - self._said > _SAY_SECONDS:
            self._said = time.monotonic()
            for name, count in self._unsaid.items():
                words = f"TOPIC({name}): {count} messages are dropped, which are older than {self._ages.of(name):g} s"
                self._port.log("WARNING", words)
            self._unsaid.clear()
