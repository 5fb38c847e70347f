"""Divides the ``max_in_flight`` of one handler among its connections: how many messages each may have in flight.

State and arithmetic only: no clock, no hub, no connection. Times are monotonic seconds that the caller passes in.

The rule is sum(max(granted, in flight)) <= max_in_flight, always. Lowering a grant recalls nothing that is on its way, and no
broker acknowledges it. So what was granted stays taken for one to two more ticks before another connection may have it, and for
as long as its connection says that it is exposed to more.

A grant is what is in flight plus a headroom. The headroom follows the traffic, because a broker sends at once when its client
has no headroom left, and waits for its output buffer otherwise. It doubles when it is used up quickly, and else falls to the
number of messages that came. Where messages come only when they are asked for, quickly is within a ``round_trip``: whatever the
traffic, none come sooner. How far a broker is that is not asked is found by trying, unless its answers have shown that it is
near: where messages come one at a time, now and then two may. When they take no longer than one did, it was the way that took
the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

PERIOD = 0.05
"""Seconds between two ticks."""
SPAN = 0.002
"""Seconds of traffic that the headroom should hold; four hub turns where those are longer."""
FLOOD = 20e-6
"""Seconds a message in which a headroom, however large, is used up quickly: a broker's buffer fills by itself then, and one
that had to wait for each batch to be settled would stand still meanwhile."""
BUSY = 0.5
"""The part of the time that a hub waits below which it is busy: silence on a connection means less then."""
PATIENCE = 0.025
"""Seconds without traffic, at most, after which a headroom is lowered on a busy hub; longer only where its turns are."""
PREFETCH = 0.02
"""Seconds of work, at the handlers' pace, that may wait for a free slot."""
CALM = 4
"""Ticks without a connection in want after which the fair levels are lifted."""
TERM = 0.01
"""Seconds between two calls of ``rotate``; a connection without work keeps its term for one. A **term** is the time in
which a connection may have a message, where there are more connections than may have one."""
EARLY = TERM / 2
"""Seconds: a timer that is a little early must not cost a whole TERM more."""
BUSY_TERM = 0.25
"""Seconds that a busy connection keeps its term."""
TRY_AFTER, TRY_AT_LEAST = 16, 512
"""Messages that came one at a time, none quickly, after which two may come at once: more after each try that was in vain, for a
broker may keep what is not asked for at once in its buffer. At least every so many messages one is made."""
FAR = 3.0
"""Seconds: a broker that takes longer than that for a message is idle, and no try is made. beanstalkd takes two round trips."""
NEVER = float("-inf")


@dataclass(slots=True, eq=False)
class Share:
    """What one connection may have in flight, and what is known of its traffic."""

    max_grant: int
    level: int
    """It is granted no more than this; below max_in_flight only while some share is in want."""
    since: float
    """When the headroom was last used up, or lowered."""
    term_since: float
    """When its term began, or when it began to wait for one."""
    round_trip: float = 0.0
    """Seconds from a grant until what there was comes; as in ``contract.Limits``."""
    distance: float = math.inf
    """The same as its node's answers have shown it, or longer; as in ``contract.Limits``."""
    way: float = 0.0
    """The same, as a try has shown it; 0 where none has."""
    single: float = math.inf
    """Seconds of the quickest two in a row, the slower of them, that came alone since the last try: one may have come on the
    heels of another, for a grant that was higher for a moment."""
    single_before: float = math.inf
    """Seconds of the last one."""
    singles: int = 0
    """Messages that came alone since the last try, none quickly."""
    try_after: int = TRY_AFTER
    """After so many of them comes the next."""
    used_up: float = NEVER
    """When the headroom was last used up, unless it has been lowered since."""
    granted: int = 0
    in_flight: int = 0
    exposed: int = 0
    """What the connection itself says that it may have in flight: what was asked for may outlive its grant."""
    headroom: int = 1
    came: int = 0
    """Messages since ``since``."""
    peak: int = 0
    """The highest grant since the last tick."""
    peak_before: int = 0
    """The highest grant in the period before it."""
    taken: int = 0
    """What it may have in flight at the broker, messages on their way included."""
    wanting: bool = False
    """It was refused something since the last tick."""
    ceded: bool = False
    """Its term ended at ``term_since``, when its grant became 0."""


class Credit:
    """The accounts of one handler's connections."""

    def __init__(self, max_in_flight: int, concurrency: int, ahead: int = 0) -> None:
        """``concurrency``: how many messages the handlers can work on at once; ``ahead``: how many more should wait meanwhile."""
        self.max_in_flight = max_in_flight
        self.shares: list[Share] = []
        self._concurrency = concurrency
        self._ahead = ahead
        self._lacking = 0
        self._patience = math.inf
        self._pace = 0.0
        """Messages settled per second: quick to rise, slow to fall."""
        self.taken = 0
        """What may be in flight at the brokers, at most: the sum of the shares' ``taken``, kept because every read needs it."""
        self._calm = 0
        self._cap: int | None = None
        self._reckon()

    def resize(self, max_in_flight: int, now: float) -> None:
        """From now on, have no more than ``max_in_flight`` in flight. Give every share its grant after it.

        What is in flight over it is not recalled: until it has been settled the sum only falls.
        """
        self.max_in_flight = max_in_flight
        for share in self.shares:
            share.level = max_in_flight
        self._reckon()
        self.rotate(now)

    def cap(self, most: int | None) -> None:
        """Until told otherwise, have no more than ``most`` in flight: 0 of none, 1 of a probe; None lifts it.

        Grants follow with the next ``grant`` and ``tick``; what is in flight already is not recalled.
        """
        self._cap = most
        self._reckon()

    def lack(self, messages: int) -> None:
        """From now on the handlers can work on so many ``messages`` less at once: remote slots are out of service."""
        if messages != self._lacking:
            self._lacking = messages
            self._reckon()

    def work_at_once(self, messages: int) -> None:
        """From now on the handlers can work on so many ``messages`` at once."""
        self._concurrency = messages
        self._reckon()

    def bear(self, calls: float) -> None:
        """A lease can be kept while its message waits for so many ``calls`` of its slot, each as long as it may be.

        What could not wait for its slot must not come: given back it would have used up an attempt without a start."""
        self._patience = calls
        self._reckon()

    # -- connections come and go

    def connect(self, max_grant: int, now: float, round_trip: float = 0.0, distance: float = math.inf) -> Share:
        """A new connection; it has no grant yet."""
        share = Share(max_grant, self.max_in_flight, since=now, term_since=now, round_trip=round_trip, distance=distance)
        self.shares.append(share)
        self._reckon()
        return share

    def disconnect(self, share: Share) -> None:
        """The connection ended: whatever it had is free at once, since nothing can come on it any more."""
        self.shares.remove(share)
        self.taken -= share.taken
        self._reckon()

    # -- traffic

    def arrived(self, share: Share, count: int, now: float, turn: float) -> None:
        """``count`` messages were read. Call it before their handlers run, or their time is taken for the broker's.

        ``turn`` is the mean length of a hub turn in seconds. The headroom at most doubles, so that the backlog after a stall,
        which comes in one read, is not taken for a rate. What lowering it has set free comes quickly too, and says as little.
        """
        share.came += count
        if share.came >= share.headroom:
            took = now - share.used_up
            if took <= max(span_of(turn) / 2, FLOOD * share.headroom, share.round_trip, share.way):
                share.headroom = min(share.headroom * 2, share.max_grant, self.max_in_flight)
                if share.way and share.headroom > 2:
                    share.try_after = TRY_AFTER
            elif share.headroom == 1:
                if share.distance > SPAN / 2:  # from nearer than that one after the other comes quickly
                    self._came_alone(share, took)
            elif share.way:
                _lowered(share, share.headroom // 2)
            share.came = 0
            share.since = share.used_up = now

    def _came_alone(self, share: Share, took: float) -> None:
        """A message ``took`` longer than one that comes quickly; perhaps it is time for a try."""
        share.singles += 1
        share.single = min(share.single, max(took, share.single_before))
        share.single_before = took
        if share.singles >= share.try_after and share.single <= FAR:
            share.headroom = min(2, share.max_grant, self.max_in_flight)
            share.way = 1.5 * share.single if share.headroom > 1 else 0.0
            share.try_after = min(2 * share.try_after, TRY_AT_LEAST)
            share.single = share.single_before = math.inf
            share.singles = 0

    def decay(self, now: float, turn: float, idle: float) -> bool:
        """Lower the headroom of shares that have not used it up for a while; returns whether any share has more than 1 left.

        ``idle``: the part of the time that the hub waits. What came while it hardly does is perhaps only not read yet, and
        what did not come the broker had no time for.
        """
        patience = patience_of(turn, idle)
        more = False
        for share in self.shares:
            if share.headroom > 1:
                if now - share.since > max(patience, 2 * share.round_trip, 2 * share.way):
                    came = share.came // 2 if share.way else share.came  # in two ways and more
                    _lowered(share, max(1, min(came, share.headroom)))
                    share.came = 0
                    share.since = now
                    share.used_up = now if share.headroom > 1 else NEVER  # a message at a time is no rate
                more = more or share.headroom > 1
        return more

    def grant(self, share: Share, in_flight: int) -> int:
        """What ``share`` is granted from now on, with ``in_flight`` messages not settled."""
        share.in_flight = in_flight
        self._account(share)
        want, most = in_flight + share.headroom, self._most(share)
        if want > most:
            share.wanting = True
            want = most
        # Small headrooms are kept exactly, they carry the latency; of a large one 40 % more or less is not worth a command.
        headroom = want - in_flight
        slack = 0.4 * headroom if headroom > 3 else 0.0
        if share.granted > most or abs(want - share.granted) > slack:
            self._set(share, want)
        return share.granted

    # -- every PERIOD

    def tick(self, now: float, settled: int, elapsed: float) -> list[Share]:
        """Let go of what was taken a period ago, and divide anew. ``settled`` messages ended in the last ``elapsed`` seconds.
        Returns the shares in the order in which they should be given their grants again: the share with the least is first.
        """
        for share in self.shares:
            share.peak_before, share.peak = share.peak, share.granted
            self._account(share)
        pace = settled / max(elapsed, PERIOD / 10)
        self._pace = max(pace, 0.8 * self._pace + 0.2 * pace)
        self._reckon()
        self._set_levels()
        self.rotate(now)
        return sorted(self.shares, key=_granted)

    @property
    def at_rest(self) -> bool:
        """Further ticks change nothing until a message or a connection comes: every share has one, and may have everything."""
        return not self.crowded and self._pace * PREFETCH < 1 and all(map(self._rests, self.shares))

    def _rests(self, share: Share) -> bool:
        unused = share.granted == share.taken == share.headroom == 1 and share.in_flight == 0
        return unused and share.level == self.max_in_flight and not share.wanting

    # -- every TERM, while crowded

    def rotate(self, now: float) -> None:
        """End the terms that were long enough, and give new ones to the shares that have waited longest; give their grants
        after it. A term without work is short, because what it invites may come later: that stays taken for a period after the
        term.
        """
        if not self.crowded:
            return
        for share in self.shares:
            if share.ceded and now - share.term_since >= PERIOD - EARLY:
                share.ceded = False
                share.peak = share.peak_before = 0
                self._account(share)
        waiting = [share for share in sorted(self.shares, key=_term_since) if share.taken == 0]
        for share in waiting[: max(0, self._limit - self.taken)]:
            self._set(share, 1)
            share.term_since = now
        coming = sum(share.taken > share.granted == share.in_flight == 0 for share in self.shares)
        self._end_terms(now, sum(share.granted == 0 for share in waiting) - coming)

    def _end_terms(self, now: float, count: int) -> None:
        """End up to ``count`` terms that were long enough, and whatever is over the limit."""
        over = sum(share.granted for share in self.shares) - self._limit
        for share in sorted((share for share in self.shares if share.granted), key=_term_since):
            busy = share.in_flight > 0 or now - share.used_up <= 2 * TERM
            had_its_term = count > 0 and now - share.term_since >= (BUSY_TERM if busy else TERM) - EARLY
            if over > 0 or had_its_term:
                over -= share.granted
                count -= 1
                self._set(share, 0)
                share.term_since = now
                share.ceded = True

    # -- the arithmetic

    def _reckon(self) -> None:
        """What all grants are measured by: anew when something of it has changed, because every read needs it."""
        workable = max(1, self._concurrency - self._lacking)
        depth = workable + int(self._pace * PREFETCH)
        wanted = self._ahead + max(0, len(self.shares) - 1)  # what idle shares hold must not take slots from the busy one
        spare = min(wanted, workable * self._patience)
        self._limit = self.max_in_flight if self._cap is None else min(self._cap, self.max_in_flight)
        if spare < wanted:
            self._limit = min(self._limit, depth + int(spare))
        self.crowded = len(self.shares) > self._limit
        """There are more shares than may be in flight: not every one can have a grant of one, so each has its term."""
        self.budget = min(self._limit, depth + int(spare))
        """What may be in flight now: max_in_flight, or less when the handlers are slow."""

    def _most(self, share: Share) -> int:
        """The largest grant that ``share`` may have now."""
        if self._limit == 0:
            return 0
        if self.crowded and share.granted == 0:
            return 0  # its term is given by rotate, or the busiest would always be quicker than one that waits
        others = self.taken - share.taken
        # When the handlers become slower, what is taken is over the budget for a while: a share with no more than an even part of
        # it keeps that, or all would fall to one at once, the pace and the budget with them, and so on.
        room = min(self._limit - others, max(self.budget - others, self.budget // len(self.shares)))
        floor = min(share.granted, 1)  # what others have too much is not taken from an idle share's one
        return max(floor, min(room, share.level, share.max_grant))

    def _set(self, share: Share, granted: int) -> None:
        share.granted = granted
        share.peak = max(share.peak, granted)
        share.ceded = share.ceded and granted == 0
        self._account(share)

    def _account(self, share: Share) -> None:
        before = share.taken
        share.taken = max(share.granted, share.in_flight, share.peak, share.peak_before, share.exposed)
        self.taken += share.taken - before

    def _set_levels(self) -> None:
        """Set the levels, while some share is in want, so that all shares in want get the same, and none more than it uses."""
        wanting = [share for share in self.shares if share.wanting]
        if wanting and len(self.shares) > 1:
            self._calm = 0
            demands = (self.max_in_flight if share.wanting else share.taken for share in self.shares)
            level, spare = fair_level(demands, self.budget)
            for share in self.shares:
                share.level = max(1, level)
                share.wanting = False
            for share in wanting[: spare if level else 0]:
                share.level += 1
            return
        for share in wanting:  # a lone one
            share.wanting = False
        if self._calm < CALM:
            self._calm += 1
        else:
            for share in self.shares:
                share.level = self.max_in_flight


def _lowered(share: Share, headroom: int) -> None:
    share.headroom = headroom
    if headroom == 1:
        share.way = 0.0


def span_of(turn: float) -> float:
    """Seconds of traffic a headroom should hold: a timer faster than the hub would lower what was merely not read yet."""
    return max(SPAN, 4 * turn)


def patience_of(turn: float, idle: float) -> float:
    """Seconds without traffic after which a headroom falls: a span, and on a busy hub the longer the less it is ``idle``."""
    span = span_of(turn)
    return span if idle >= BUSY else max(span, span / max(idle, span / PATIENCE))


def fair_level(wishes: Iterable[int], budget: int) -> tuple[int, int]:
    """Max-min fairness in whole messages: the highest level L with sum(min(wish, L)) <= budget, and what is then left over."""
    left, ordered = budget, sorted(wishes)
    for index, wish in enumerate(ordered):
        count = len(ordered) - index
        if wish > left // count:
            return left // count, left % count
        left -= wish
    return budget, 0  # all fit


def _granted(share: Share) -> int:
    return share.granted


def _term_since(share: Share) -> float:
    return share.term_since
