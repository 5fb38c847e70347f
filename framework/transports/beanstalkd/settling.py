"""Keeps how jobs ended until it can be sent, sends it on the connection that holds each job, and counts it. A count is taken
back where the server refused."""

from __future__ import annotations

from framework.transports.beanstalkd.bell import Bell
from framework.transports.beanstalkd.bells import Bells
from framework.transports.beanstalkd.demand import Demand
from framework.transports.beanstalkd.desk import Desk
from framework.transports.beanstalkd.hold import Hold
from framework.transports.beanstalkd.intake import Intake
from framework.transports.beanstalkd.room import Room
from framework.transports.contract import Tally


class Settling:
    """Of one connection."""

    def __init__(self, tally: Tally, *, desk: Desk, bells: Bells, intake: Intake, demand: Demand, room: Room) -> None:
        self.settled: list[Hold] = []
        """To be told in the next send."""
        self.late: dict[Hold, None] = {}
        """Jobs to release as soon as their priority is known, or there is room."""
        self._tally = tally
        self._desk = desk
        self._bells = bells
        self._intake = intake
        self._demand = demand
        self._room = room

    def __len__(self) -> int:
        return len(self.settled) + len(self.late)

    def when_known(self, hold: Hold) -> None:
        """A release and a bury give back the job's priority."""
        if hold.priority >= 0 and hold not in self._room.kept:
            self.settled.append(hold)
        else:
            self.late[hold] = None
            if hold.priority < 0 and not hold.asked:
                self._intake.asking.append(hold)

    def kept_long_enough(self, holds: list[Hold]) -> None:
        for hold in holds:
            if hold in self.late and hold.priority >= 0:
                self._pop_late(hold)
                self.settled.append(hold)

    def known(self, hold: Hold) -> bool:
        """All that can be known of ``hold`` is. False: it was to be told how that ended, and the server has no such job."""
        known = hold.priority >= 0
        if hold not in self.late or (known and hold in self._room.kept):
            return True
        self._pop_late(hold)
        if known:
            self.settled.append(hold)
        return known

    def _pop_late(self, hold: Hold) -> None:
        del self.late[hold]
        self._room.kept.pop(hold, None)

    def tell(self) -> None:
        """Have all that is ``settled`` told in the next send."""
        settled, self.settled = self.settled, []
        done = [hold for hold in settled if hold.keeper is self._desk and hold.verb == "delete"]
        if done:
            self._desk.finish(done)
        self._tally.finished += len(done)
        if len(done) < len(settled):
            self._tell_others([hold for hold in settled if hold.keeper is not self._desk or hold.verb != "delete"])

    def _tell_others(self, settled: list[Hold]) -> None:
        room = self._demand.room if self._desk.dry else 0  # a bell that rings in a flood would only cost what the desk saves
        for hold in settled:
            if hold.verb == "release":
                self._tally.requeued += 1
                if self._room.full:
                    hold.delay = 0
            else:
                self._tally.finished += 1
            if isinstance(hold.keeper, Bell):
                room -= self._bells.settle(hold.keeper, hold, again=room > 0)
            else:
                self._desk.settle(hold)

    # --- in vain -------------------------------------------------------------------------------------------

    def refused(self, verb: str) -> None:
        """The server refused a settlement that was counted already."""
        if verb == "release":
            self._tally.requeued -= 1
        else:
            self._tally.finished -= 1

    def cut(self, lines: list[bytes]) -> None:
        """Commands that were counted when they were handed over, and that the socket did not take whole."""
        released = sum(line.startswith(b"release ") for line in lines)
        finished = sum(line.startswith((b"delete ", b"bury ")) for line in lines)
        self._tally.requeued -= released
        self._tally.finished -= finished
        self._tally.lease_lost += released + finished

    def lose(self, hold: Hold) -> None:
        """The connection that held the job has ended."""
        if hold in self.settled:
            self.settled.remove(hold)
            self._tally.lease_lost += 1
        elif hold in self.late:
            self._pop_late(hold)
            self._tally.lease_lost += 1

    def clear(self) -> None:
        self._tally.lease_lost += len(self)
        self.settled.clear()
        self.late.clear()
