"""Reads, answers, touches and gives back for a connection in its hub's place, from another native thread, and tells the hub
afterwards. What is due is ``rescue``'s to say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from time import monotonic
from typing import Any, Protocol

from framework.errors import BrokerError, ProtocolError
from framework.message import Message
from framework.transports.contract import Limits, Tally
from framework.transports.nsq import wire
from framework.transports.nsq.outbox import Outbox
from framework.transports.nsq.rescue import Rescue
from framework.transports.stream import RECV_SIZE

LOCK_PATIENCE = 0.1
"""Seconds that a rescue waits for a hub that does turn after all."""


class Owner(Protocol):
    """The connection. Whoever uses its socket, ``feed`` or ``outbox`` holds its ``lock``."""

    limits: Limits
    granted: int
    in_flight: dict[Message, float]
    sock: Any
    lock: Any
    feed: Callable[[bytes], tuple[list[Message], list[bytes | BrokerError]]]
    outbox: Outbox
    last_read: float
    draining: bool
    closed: bool

    def hand_over(self, messages: list[Message]) -> None: ...

    def take_frames(self, frames: list[bytes | BrokerError]) -> None: ...

    def count_losses(self) -> None: ...


class Rescuer:
    """``contract.Rescuable`` and ``contract.Releasable`` of one connection.

    ``guarded(work)`` runs what the hub does of it, and catches what that raises."""

    def __init__(self, owner: Owner, tally: Tally, guarded: Callable[..., None]) -> None:
        self.rescue_made: Rescue | None = None
        """What was done in the hub's place, and it does not know yet."""
        self._owner = owner
        self._tally = tally
        self._guarded = guarded

    # --- in another native thread ------------------------------------------------------------------------------

    def rescue(self, now: float, expired: Collection[Message]) -> None:
        owner = self._owner

        def keep(rescue: Rescue) -> None:
            self._read_all(rescue, now)
            if owner.outbox.send_tail(owner.sock):
                touches = rescue.touch(owner.in_flight, owner.limits.lease, now, expired)
                owner.outbox.send_in_its_place(owner.sock, rescue, touches)

        self._in_the_hubs_place(keep)

    def release(self, kept: Container[Message]) -> None:
        owner = self._owner

        def give_back(rescue: Rescue) -> None:
            self._read_all(rescue, monotonic())
            if not owner.outbox.send_tail(owner.sock):
                return
            if owner.draining:
                said = rescue.give_back(owner.in_flight, kept)
            else:  # what it sends until it has read this is given back the next time
                owner.draining, owner.granted, said = True, 0, [wire.rdy(0), wire.CLS]
            owner.outbox.send_in_its_place(owner.sock, rescue, [], said)

        self._in_the_hubs_place(give_back)

    def write_off(self) -> None:
        def end(_: Rescue) -> None:
            self._owner.closed = True
            self.learn()
            self._owner.count_losses()

        self._in_the_hubs_place(end)

    def _in_the_hubs_place(self, work: Callable[[Rescue], None]) -> None:
        owner = self._owner
        if not owner.lock.acquire(timeout=LOCK_PATIENCE):
            return
        try:
            if not owner.closed:
                self.rescue_made = self.rescue_made or Rescue()
                work(self.rescue_made)
        except OSError:  # the hub finds it as well
            pass
        finally:
            owner.lock.release()

    def _read_all(self, rescue: Rescue, now: float) -> None:
        """Until nothing is left: a socket that stays full is one that nsqd gives up writing to."""
        owner = self._owner
        try:
            while rescue.error is None and (data := owner.sock.recv(RECV_SIZE)):
                owner.last_read = now
                messages, frames = owner.feed(data)
                rescue.heard(messages, frames, now)
        except BlockingIOError:
            pass
        except ProtocolError as error:
            rescue.error = error

    # --- on the hub ----------------------------------------------------------------------------------------------

    def rescued(self) -> None:
        if self.rescue_made is not None and not self._owner.closed:
            self._guarded(self.take)

    def gave_back(self, message: Message) -> bool:
        """Whether it was requeued in the hub's place, which the hub may do beside it. Of one that is not in flight any more, so
        that it is not given back from now on: nsqd refuses a second REQ, which counts as a lost lease."""
        if self.rescue_made is None:
            return False
        with self._owner.lock:
            return self.rescue_made is not None and message in self.rescue_made.given_back

    def take(self) -> None:
        """Know what was done in the hub's place, and hand over what came."""
        owner = self._owner
        with owner.lock:
            rescue, self.rescue_made = self.rescue_made, None
        if rescue is None:
            return
        self._count(rescue, owner.in_flight)
        if messages := [one for one in rescue.messages if one in owner.in_flight]:
            owner.hand_over(messages)
        owner.take_frames(rescue.frames)
        if rescue.error is not None:
            raise rescue.error

    def learn(self) -> None:
        """At the end: only count what was done in the hub's place."""
        rescue, self.rescue_made = self.rescue_made, None
        if rescue is not None:
            self._count(rescue, self._owner.in_flight)

    def _count(self, rescue: Rescue, in_flight: dict[Message, float]) -> None:
        """As if the hub had done so itself."""
        self._tally.finished += rescue.finished
        self._tally.requeued += rescue.requeued
        self._tally.received += len(rescue.messages)
        in_flight.update(dict.fromkeys(rescue.messages, 0.0))
        for message, at in rescue.since.items():
            if in_flight.pop(message, None) is not None:  # else it has been settled since
                in_flight[message] = at
        for message in rescue.given_back:
            self._tally.requeued += in_flight.pop(message, None) is not None
