"""The queues that one member of a group reads by PULL: which they are, and how far each is done. No I/O here.

Source: AllocateMessageQueueAveragely and ProcessQueue of RocketMQ 5.3.3's client.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, TypeAlias

from framework.transports.rocketmq.trail import Trail

SPAN = 2000
"""Offsets between the first message of a queue that is not settled and the next one to be pulled, at most: so many may come
again when a worker is killed."""

PAUSED = 1.0
"""Seconds without a grant after which others may have the queues of a connection."""


class Place(NamedTuple):
    """One queue. They are ordered as Java's client does it: all members of a group must come to the same result."""

    topic: str
    """RocketMQ's name of it."""
    broker: str
    number: int

    def as_json(self) -> dict[str, Any]:
        """As the requests that lock it have it."""
        return {"topic": self.topic, "brokerName": self.broker, "queueId": self.number}


class Broken(NamedTuple):
    """A connection of a member that broke."""

    ours: frozenset[Place] = frozenset()
    """The queues that were ours: none, where there were more members than queues."""
    since: float | None = None
    """Since when only what is ours was taken, in seconds of ``monotonic``, if that was not over."""


class Absent:
    """The members of a group that one broker named, and those that it names no more. One keeps its name when it dials again."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def note(self, members: Collection[str], now: float) -> None:
        """It names ``members``. ``now``: in seconds of ``monotonic``."""
        for one in self._since.keys() - members:
            self._since[one] = min(self._since[one], now)
        self._since.update(dict.fromkeys(members, math.inf))

    def before(self, when: float) -> list[str]:
        """Those that were not named any more by then."""
        return [one for one, since in self._since.items() if since <= when]

    @property
    def first(self) -> float:
        """When the first of them was not named any more; infinity where all are there."""
        return min(self._since.values(), default=math.inf)

    def forget(self, client: str) -> None:
        del self._since[client]

    def again(self, client: str, now: float) -> None:
        """It has been seen, beside the members."""
        self._since[client] = now


class Cut(NamedTuple):
    """A broker has lost the end of its log. It is one for all queues, so that those are cut as well that others have read."""

    kept: int
    """The place in the log of a message that is still there, and was read before those that are gone."""
    found: float
    """When, in seconds of ``monotonic``."""


class Past:
    """What a group remembers here of its connections that have ended."""

    def __init__(self) -> None:
        self.trails: dict[Place, Trail] = {}
        """Of those queues that were read."""
        self.broke: dict[str, Broken] = {}
        """By broker."""
        self.absent: dict[str, Absent] = {}
        """By broker."""
        self.cuts: dict[str, Cut] = {}
        """By broker: the last one that was found."""


Pasts: TypeAlias = dict[str, Past]
"""By group."""


def allocated(places: Iterable[Place], members: Iterable[str], me: str) -> list[Place]:
    """Those of ``places``, which are of one topic, that are for the member ``me``: each is for one member, and none has two more
    than another.

    A broker names a member once for each of its connections. That is twice where one has dialled again, until the first is found
    dead, two minutes later: it has both shares then, as nobody else would read the other one."""
    places, members = sorted(places), sorted(members)
    if me not in members:
        return []
    index = members.index(me)
    each, rest = divmod(len(places), len(members))
    start, end = (one * each + min(one, rest) for one in (index, index + members.count(me)))
    return places[start:end]


class Reading:
    """One queue that is ours. ``offset``: where its group goes on; ``trail``: what was read of it here before; ``astray``: it may
    not be the one that another member read."""

    def __init__(self, place: Place, offset: int, trail: Trail | None = None, *, astray: bool = False) -> None:
        self.place, self.first = place, offset
        self.trail = Trail() if trail is None else trail
        self.astray = astray or bool(self.trail)
        """It may not be the queue any more that was read: how far it is must be found first."""
        self.next = offset
        """The offset of the next message that may be taken."""
        self.ahead = offset
        """The offset to be pulled next: behind ``next`` while what was answered has not been opened."""
        self.told = offset
        """As its broker knows it."""
        self.asking = False
        """A PULL is under way."""
        self.asked_at = 0.0
        """When, in seconds of ``monotonic``."""
        self.more = False
        """Its broker has said that there is something at ``next``, so that a PULL does not wait."""
        self.ends = False
        """Nothing is behind the answer that came, which has not been opened: a PULL there would wait, and hold up what was left
        out of it."""
        self.telling = False
        """Its broker is being told of the mark."""
        self.refused = False
        """Its broker lets nobody read it for now, or has answered at once and brought nothing."""
        self.hole = 0
        """Its broker cannot read what lies at ``next``, and names this as the place to go on at: what can be read before it is
        looked for first. 0: it can."""
        self.one_by_one = False
        """The next PULL is for one message: an answer with several did not tell which one lies at ``next``."""
        self.leaving = False
        """It is another member's by now: nothing more is pulled, and it is let go of once it is idle."""
        self.sent_back = 0
        """Messages of it that the broker is being asked to take back."""
        self.unsettled: dict[int, None] = {}
        """The offsets of what is in flight, in order. For each message ``pulling`` adds to them itself, and takes off."""
        self.last_settled = -1
        self._end = 0

    @property
    def mark(self) -> int:
        """All before it is settled: the offset at which the group goes on, whatever happens."""
        return next(iter(self.unsettled), self.next)

    @property
    def idle(self) -> bool:
        return not self.unsettled

    @property
    def room(self) -> int:
        """How many offsets may be pulled."""
        if self.leaving or self.refused or self.astray or self.ends or self.hole:
            return 0
        return max(0, min(1 if self.one_by_one else SPAN, SPAN - (self.ahead - self.mark)))

    def took(self, offset: int) -> None:
        """The message there is in flight."""
        self.unsettled[offset] = None
        self.next = self.ahead = offset + 1

    def comes(self, following: int, end: int) -> None:
        """An answer goes as far as ``following``, as its header says, and its queue as far as ``end``. It has not been opened."""
        self._end, self.one_by_one = end, False
        self.ahead = max(self.next, following)
        self.more = end > self.ahead
        self.ends = not self.more

    def opened(self) -> None:
        """What is pulled next is what follows on what was taken: of an answer, some may have been passed over."""
        self.ends = False
        if self.ahead != self.next:
            self.ahead, self.more = self.next, self._end > self.next

    def moved(self, offset: int) -> bool:
        """Its broker names ``offset`` as the next. False where that lies behind what is in flight: the broker has lost messages,
        and gives their offsets to others, whose settlements cannot be told from theirs."""
        if offset < self.next and not self.idle:
            return False
        if offset < self.next and self.trail.points:
            self.astray = True
        else:
            self.goes_on_at(offset)
        return True

    def goes_on_at(self, offset: int) -> None:
        """That is the next one to be read."""
        if offset < self.next:  # what was settled behind it were other messages
            self.last_settled = -1
        self.next = self.ahead = offset
        self.astray, self.hole = False, 0

    def ended(self) -> None:
        """It is read no more. What was passed over behind the last message that was for us counts as read."""
        if self.trail or not self.first:
            self.trail.most = max(self.trail.most, self.next)

    def settled(self, offset: int) -> None:
        """It need not come again."""
        self.unsettled.pop(offset, None)
        if offset > self.last_settled:  # noqa: PLR1730 - max() takes twice as long
            self.last_settled = offset

    def would_repeat(self, offset: int) -> bool:
        """Whether something behind ``offset`` is settled, which comes again unless the message there is settled too."""
        return offset < self.last_settled
