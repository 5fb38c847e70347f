"""Keeps the leases of a connection in its hub's place, and tells the hub afterwards. What is due is ``rescue``'s to say."""

from __future__ import annotations

from collections.abc import Callable, Collection

from framework.message import Message
from framework.transports.beanstalkd.attempts import Attempts
from framework.transports.beanstalkd.poller import Poller
from framework.transports.beanstalkd.rescue import Rescue, snapshot
from framework.transports.beanstalkd.reserved_job import Keeper, ReservedJob
from framework.transports.beanstalkd.settling import Settling
from framework.transports.beanstalkd.waiters import WaiterPool


class Rescuer:
    """``contract.Rescuable`` of one connection: where its jobs are. ``lease()``: the seconds that it counts on.

    ``guarded(work)`` runs what the hub does of it, and catches what that raises."""

    def __init__(
        self, in_flight: dict[Message, float], jobs: dict[Message, ReservedJob], *, poller: Poller, waiters: WaiterPool,
        attempts: Attempts, settling: Settling, lease: Callable[[], float], guarded: Callable[..., None],
    ) -> None:  # fmt: skip
        self._in_flight = in_flight
        self._jobs = jobs
        self._poller = poller
        self._waiters = waiters
        self._attempts = attempts
        self._settling = settling
        self._lease = lease
        self._guarded = guarded
        self._rescue: Rescue | None = None

    # --- in another native thread ------------------------------------------------------------------------------

    def rescue(self, now: float, expired: Collection[Message]) -> None:
        """Touch what was reserved a third of a lease ago, and all that is neither delivered nor sent: its lease may be older."""
        rescue = self._rescue = self._rescue or Rescue()
        touches = rescue.touches(self._in_flight, self._jobs, self._lease(), now, expired)
        for job in self._halfway():
            touches.setdefault(job.keeper, []).append((job.number, None))
        keepers: list[Keeper] = [self._poller, *snapshot(self._waiters.all)]
        for keeper in keepers:
            keeper.rescue(touches.get(keeper, ()))

    def _halfway(self) -> list[ReservedJob]:
        """The jobs that are ours and not in flight."""
        kept = [waiter.job for waiter in snapshot(self._waiters.all)]
        got = [job for job in kept if job is not None and job.message is None]
        settled = [*snapshot(self._settling.settled), *snapshot(self._settling.late)]
        return [*self._poller.undelivered(), *snapshot(self._attempts.asking), *snapshot(self._attempts.arrived), *settled, *got]

    # --- on the hub ----------------------------------------------------------------------------------------------

    def rescued(self) -> None:
        if self._rescue is not None:
            self._guarded(self.take)

    def take(self) -> None:
        """Know what was done in the hub's place, if anything was."""
        rescue, self._rescue = self._rescue, None
        if rescue is None:
            return
        for message, at in rescue.touched.items():
            if self._in_flight.pop(message, None) is not None:
                self._in_flight[message] = at
        for hub_socket in [self._poller.hub_socket, *[waiter.hub_socket for waiter in self._waiters.all]]:
            hub_socket.resume()
