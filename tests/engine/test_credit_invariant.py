"""Never more than ``max_in_flight`` in flight, against an adversary of a broker."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from framework.engine.credit import (
    PERIOD,
    SPAN,
    TERM,
    Credit,
    Share,
)

LAG = PERIOD / 2
"""Seconds: how long a grant may take to reach the broker, and a message to come back."""


@dataclass(eq=False)
class Remote:
    """The broker's side of one share: it may act on any grant that is younger than LAG, or on the newest that is older."""

    share: Share
    grants: list[tuple[float, int]] = field(default_factory=lambda: [(-1.0, 0)])
    coming: list[float] = field(default_factory=list)
    here: int = 0

    def hear(self, now: float) -> None:
        if self.share.granted != self.grants[-1][1]:
            self.grants.append((now, self.share.granted))

    def highest(self, now: float) -> int:
        old = [index for index, (at, _) in enumerate(self.grants) if at <= now - LAG]
        del self.grants[: old[-1] if old else 0]
        return max(granted for _, granted in self.grants)

    @property
    def in_flight(self) -> int:
        return self.here + len(self.coming)


which = st.integers(0, 3)


class AnyBroker(RuleBasedStateMachine):
    """Whatever comes, in whatever order, and however late: never more than max_in_flight is in flight."""

    @initialize(max_in_flight=st.integers(1, 12), concurrency=st.integers(1, 12), lazy=st.booleans())
    def begin(self, max_in_flight: int, concurrency: int, lazy: bool) -> None:
        self.lazy = lazy  # it is ticked only while it is not at rest, as by the Pulse
        self.credit = Credit(max_in_flight, concurrency)
        self.remotes: list[Remote] = []
        self.now, self.last_tick, self.settled = 0.0, 0.0, 0
        self.cap: int | None = None
        self.allowed = max_in_flight

    def regrant(self, remote: Remote) -> None:
        self.credit.grant(remote.share, remote.here)
        remote.hear(self.now)

    def arrive(self, remote: Remote, count: int) -> None:
        if count:
            remote.here += count
            del remote.coming[:count]
            self.credit.arrived(remote.share, count, self.now, 0.0)
            self.regrant(remote)

    @precondition(lambda self: len(self.remotes) < 4)
    @rule()
    def connect(self) -> None:
        remote = Remote(self.credit.connect(10, self.now))
        self.remotes.append(remote)
        self.regrant(remote)

    @precondition(lambda self: len(self.remotes) > 2)
    @rule(which=which)
    def disconnect(self, which: int) -> None:
        self.credit.disconnect(self.remotes.pop(which % len(self.remotes)).share)

    @precondition(lambda self: self.remotes)
    @rule(which=which, times=st.integers(1, 5), settled=st.booleans())
    def traffic(self, which: int, times: int, settled: bool) -> None:
        """The broker sends all that it may, which comes at once, and is settled or not."""
        remote = self.remotes[which % len(self.remotes)]
        for _ in range(times):
            self.send(remote, 99)
            self.arrive(remote, len(remote.coming))
            if settled:
                self.settle(remote, remote.here)

    @precondition(lambda self: self.remotes)
    @rule(which=which, count=st.integers(1, 12))
    def the_broker_sends_what_comes_later(self, which: int, count: int) -> None:
        self.send(self.remotes[which % len(self.remotes)], count)

    @precondition(lambda self: self.remotes)
    @rule(which=which, count=st.integers(1, 12))
    def handlers_settle(self, which: int, count: int) -> None:
        self.settle(self.remotes[which % len(self.remotes)], count)

    @rule(most=st.sampled_from([0, 1, None]))
    def only_so_many_may_be_in_flight(self, most: int | None) -> None:
        self.credit.cap(most)
        self.cap = most
        for remote in self.remotes:
            self.regrant(remote)

    @rule(calls=st.sampled_from([0, 0.5, math.inf]))
    def bear(self, calls: float) -> None:
        self.credit.bear(calls)

    @rule(messages=st.integers(0, 12))
    def lack(self, messages: int) -> None:
        self.credit.lack(messages)

    @rule(max_in_flight=st.integers(1, 12))
    def resize(self, max_in_flight: int) -> None:
        self.credit.resize(max_in_flight, self.now)
        self.allowed = max(self.allowed, max_in_flight)
        for remote in self.remotes:
            self.regrant(remote)
        assert sum(remote.share.granted for remote in self.remotes) <= max_in_flight

    @rule()
    def terms(self) -> None:
        self.now += TERM
        self.time_goes_by(0.0)
        self.credit.rotate(self.now)
        for remote in self.remotes:
            self.regrant(remote)

    def send(self, remote: Remote, count: int) -> None:
        room = remote.highest(self.now) - remote.in_flight
        remote.coming += [self.now] * max(0, min(count, room))

    def settle(self, remote: Remote, count: int) -> None:
        count = min(count, remote.here)
        remote.here -= count
        self.settled += count
        self.regrant(remote)

    @rule(seconds=st.sampled_from([0.001, LAG - 0.001, PERIOD]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds
        for remote in self.remotes:
            self.arrive(remote, sum(at <= self.now - LAG for at in remote.coming))
        if self.now - self.last_tick >= PERIOD:
            if self.lazy and self.credit.at_rest:
                self.last_tick = self.now
            else:
                self.tick()

    @rule()
    def silence(self) -> None:
        self.time_goes_by(1.1 * SPAN)
        self.credit.decay(self.now, 0.0, 1.0)
        for remote in self.remotes:
            self.regrant(remote)

    def tick(self) -> None:
        by_line = {remote.share: remote for remote in self.remotes}
        for share in self.credit.tick(self.now, self.settled, self.now - self.last_tick):
            self.regrant(by_line[share])
        self.settled, self.last_tick = 0, self.now

    @invariant()
    def never_more_than_max_in_flight(self) -> None:
        if not hasattr(self, "credit"):
            return
        assert sum(max(remote.share.granted, remote.in_flight) for remote in self.remotes) <= self.allowed
        at_the_brokers = sum(max(remote.highest(self.now), remote.in_flight) for remote in self.remotes)
        assert at_the_brokers <= self.allowed
        # After max_in_flight was lowered, what is over it can only become less.
        self.allowed = max(self.credit.max_in_flight, at_the_brokers)

    @invariant()
    def the_running_total_is_the_sum(self) -> None:
        if hasattr(self, "credit"):
            assert self.credit.taken == sum(share.taken for share in self.credit.shares)

    def teardown(self) -> None:
        """However it got here: once all is settled, every share is granted something again, at once or in its term."""
        if not hasattr(self, "credit"):
            return
        if self.cap == 0:
            assert not any(remote.share.granted for remote in self.remotes)
            self.credit.cap(1)
        for remote in self.remotes:
            remote.here, remote.coming = 0, []
            self.regrant(remote)
        served: set[Share] = set()
        for _ in range(6 + 4 * len(self.remotes)):
            self.now += PERIOD
            self.tick()
            served |= {remote.share for remote in self.remotes if remote.share.granted}
            self.never_more_than_max_in_flight()
        assert served == {remote.share for remote in self.remotes}


TestAnyBroker = AnyBroker.TestCase
TestAnyBroker.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
