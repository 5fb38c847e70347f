"""Goes through the letters of one dead letter topic: holds each until the end, then gives back all that were not taken.

Brokers have no word for looking at what waits, so a letter is received, kept by touching it, and given back without a delay.
It knows no broker: the same steps read a topic with channels and a tube without.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import gevent
from gevent.event import Event

from framework.deadletters.letter import Letter, Selection, read
from framework.deadletters.topics import DeadTopic
from framework.engine.ledger import Ledger
from framework.errors import AlreadySettled, BrokerUnreachable, FrameworkError, SomeUnreachable
from framework.message import Message
from framework.transports.contract import GOODBYE, TOUCH_AT, Connection, Tally

WINDOW = 100
"""Letters asked for ahead of those in hand."""
MOST_HELD = 100_000
"""Letters in hand at once, over all nodes: without their bodies that is some 50 MB."""
QUIET = 0.25
"""Seconds without a letter after which the broker is asked whether there are more."""
PATIENCE = 3.0
"""Seconds without a letter after which those still missing are taken to be in other hands."""
CLOSING = 1.0
"""Seconds, at most, for giving back and closing, beside what the brokers take for their goodbye."""


class Sweep:
    """The letters that were there when it began, each once. A context manager: at its end nothing is held any more.

    Is a ``contract.Receiver`` for its own connections. Raises BrokerUnreachable when a node goes away meanwhile.
    """

    def __init__(self, topic: DeadTopic) -> None:
        self.topic = topic
        self.expected = topic.count
        self.seen = 0
        """Letters met so far."""
        self.cut_short = ""
        """Why it ended before it had met all; empty when it met all."""
        self.tally: Tally = Ledger()
        self.capacity = self.expected
        self._known: set[tuple[str, bytes]] = set()
        self._taken: set[tuple[str, bytes]] = set()
        self._met: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._arrived: deque[Message] = deque()
        self._changed = Event()
        self._open: list[Connection] = []
        self._drained: set[Connection] = set()
        self._error: Exception | None = None
        self._ending = False
        self._toucher: Any = None
        self._want = self.expected

    def __enter__(self) -> Sweep:
        self._toucher = gevent.spawn(self._touch_for_ever)
        return self

    def __exit__(self, *error: object) -> None:
        self._ending = True
        self._give_back()
        self._toucher.kill()

    # -- the letters

    def chosen(self, selection: Selection) -> Iterator[Letter]:
        """The letters of its owners that ``selection`` means; the others stay in hand. Each is in hand until it is taken."""
        left = selection.limit
        if left is not None and selection == Selection(limit=left):  # so many will do: leave the rest where it is
            self._want = min(self._want, left)
        for letter in self._letters():
            if not letter.belongs_to(self.topic.owners):
                self._want = min(self.expected, self._want + 1)
            elif selection.takes(letter):
                yield letter
                if left is not None:
                    left -= 1
            if left == 0:
                return

    def take(self, letter: Letter) -> None:
        """It is done with: the broker forgets it."""
        self._taken.add(_key(letter.message))
        self._finish(letter.message)

    def _finish(self, message: Message) -> None:
        try:
            message.connection.finish(message)
        except AlreadySettled:  # its lease was lost; when it comes again it is finished then
            pass

    @property
    def left_behind(self) -> int:
        """How many of the letters taken the broker may still have. Known when the sweep has ended."""
        return len(self._taken) - min(len(self._taken), self.tally.finished)

    def _letters(self) -> Iterator[Letter]:
        if self._want:
            self._connect()
        while self.seen < self._want and self._wait():
            message = self._arrived.popleft()
            self._waiting[message.node] -= 1
            if self._is_new(message):
                self.seen += 1
                self._met[message.node] += 1
                yield read(message)
                self._grant()

    def _is_new(self, message: Message) -> bool:
        """A letter comes again when its lease was lost."""
        key = _key(message)
        if key in self._taken:
            self._finish(message)
            return False
        if key in self._known:
            message.body = b""
            return False
        self._known.add(key)
        return True

    # -- waiting for them

    def _wait(self) -> bool:
        """Whether there is a letter to look at. False: there is no other to be had."""
        since = time.monotonic()
        while not self._arrived:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            if self._changed.wait(QUIET):
                continue
            if self.cut_short or self._all_in_hand():
                return False
            if time.monotonic() - since > PATIENCE:
                self.cut_short = f"{self._want - self.seen} are in other hands, or deferred"
                return False
        return True

    def _all_in_hand(self) -> bool:
        try:
            kept = self.topic.transport.backlog(self.topic.name, self.topic.channel)
        except SomeUnreachable as error:
            if error.down & self.topic.nodes.keys():
                raise
            kept = error.answers  # the others were down when it began
        return sum(kept.values()) <= self._in_flight and not self._arrived

    @property
    def _in_flight(self) -> int:
        return sum(len(connection.in_flight) for connection in self._open)

    # -- connections

    def _connect(self) -> None:
        for node, count in self.topic.nodes.items():
            if count:
                self._dial(node)
        self._grant()

    def _dial(self, node: str) -> None:
        connection = self.topic.transport.connect(node, self.topic.name, self.topic.channel, self)
        self._open.append(connection)

    def _grant(self) -> None:
        """Ask each node for no more letters than it has left, a window at a time."""
        room = MOST_HELD - self._in_flight
        needed = self._want - self.seen - len(self._arrived)
        for node, count in self.topic.nodes.items():
            here = self._waiting[node]
            ahead = min(WINDOW - here, count - self._met[node] - here, needed, room)
            if ahead > 0:
                self._ask(node, ahead)
        if room <= 0:
            self.cut_short = f"only the first {self.seen} were looked at, no more can be held at once"

    def _ask(self, node: str, ahead: int) -> None:
        """Of the newest connection to ``node``; of one more, when that one holds all it may."""
        connection = [one for one in self._open if one.node == node][-1]
        if len(connection.in_flight) >= connection.limits.max_grant:
            try:
                self._dial(node)
            except FrameworkError as error:
                self.cut_short = f"only the first {self.seen} were looked at, no more can be held at once ({error})"
                return
            connection = self._open[-1]
        wanted = min(len(connection.in_flight) + ahead, connection.limits.max_grant)
        if wanted > connection.granted:
            connection.grant(wanted)

    # -- contract.Receiver

    def deliver(self, connection: Connection, batch: list[Message]) -> None:
        if not self._ending:  # else they go back with the others
            self._arrived.extend(batch)
            self._waiting[connection.node] += len(batch)
            self._changed.set()

    def settled(self, connection: Connection) -> None:
        """What is settled here changes no grant."""

    def lost(self, connection: Connection, message: Message | None, words: str, *, settled: bytes = b"") -> None:
        """It comes again, and is known then."""

    def drained(self, connection: Connection) -> None:
        self._drained.add(connection)
        self._changed.set()

    def closed(self, connection: Connection, error: Exception | None) -> None:
        if connection in self._open:
            self._open.remove(connection)
        if not self._ending:
            self._error = error or BrokerUnreachable(f"{connection.node} closed the connection")
        self._changed.set()

    # -- leases

    def _touch_for_ever(self) -> None:
        while True:
            gevent.sleep(min([1.0, *(connection.limits.lease for connection in self._open)]) / 10)
            for connection in list(self._open):
                self._touch(connection)

    def _touch(self, connection: Connection) -> None:
        limits = connection.limits
        if limits.max_lease <= limits.lease:  # touching gains nothing there
            return
        due = time.monotonic() - limits.lease * TOUCH_AT
        for message, at in list(connection.in_flight.items()):
            if at > due:
                break
            try:
                connection.touch(message)
            except AlreadySettled:  # its lease is over, which its connection has just found out
                pass

    # -- the end

    def _give_back(self) -> None:
        """First no more may come, or what is given back would come here again."""
        for connection in list(self._open):
            connection.drain()
        self._until(lambda: all(one in self._drained for one in self._open))
        for connection in list(self._open):
            for message in list(connection.in_flight):
                connection.requeue(message, 0.0)
            connection.close()
        self._until(lambda: not self._open)

    def _until(self, condition: Any) -> None:
        deadline = time.monotonic() + CLOSING + max([GOODBYE, *(connection.limits.goodbye for connection in self._open)])
        while not condition() and (left := deadline - time.monotonic()) > 0:
            self._changed.clear()
            self._changed.wait(left)


def _key(message: Message) -> tuple[str, bytes]:
    """The id of a letter's message is unique on its node."""
    return message.node, message.id
