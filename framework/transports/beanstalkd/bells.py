"""The bells of one connection: one waits while there may be one more job, the others keep jobs that they got or are spare."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

import gevent
from gevent.hub import get_hub

from framework.alarm import Countdown
from framework.errors import BrokerUnreachable, FrameworkError
from framework.message import Message
from framework.observe import hublog
from framework.transports.beanstalkd import reserved_job
from framework.transports.beanstalkd.bell import Bell
from framework.transports.beanstalkd.dial import Line, dial
from framework.transports.beanstalkd.pipe import Pipe
from framework.transports.beanstalkd.reserved_job import ReservedJob

log = hublog.get(__name__)

MOST = 64
"""Connections that may each keep a job of a slow handler. With more of those, the tube is looked at every ``KNOCK`` seconds."""
KNOCK = 0.1
SPARE = 30.0
"""Seconds after which a bell that was not needed is closed."""
_REDIAL, _REDIAL_CAP = 0.5, 15.0
"""Seconds before a bell that broke, or could not be had, is replaced; and what they grow to while none can be had."""


class Owner(reserved_job.Owner, Protocol):
    """What the bells tell. All of it is called on the hub."""

    def rang(self, job: ReservedJob) -> None:
        """One got a job."""

    def look(self) -> None:
        """No bell can wait, and there may be jobs: poll for them."""

    def changed(self) -> None:
        """There may be a bell more or less: ask for one that waits, if need be."""

    def broke(self, job: ReservedJob | None, cut: list[bytes], error: Exception) -> None:
        """A bell has ended, with its job, and with ``cut``, the commands that it could not hand over whole."""

    def failed(self, error: Exception) -> None:
        """The server makes no sense: no bell can be had."""


class Bells:
    """Those of the handlers of ``tube`` on ``node``."""

    def __init__(self, node: str, tube: str, owner: Owner, guarded: Callable[..., None]) -> None:
        """``guarded(work)`` runs what a timer asks for, and catches what that raises."""
        self.all: dict[Bell, None] = {}
        self.waiting: Bell | None = None
        """The one in reserve."""
        self.dialling: Any = None
        self.open = True
        self._spare: list[Bell] = []
        self._redial = _REDIAL
        self._dial_at = 0.0
        """When one may be dialled (monotonic seconds): after a failure, not at once."""
        self._node = node
        self._tube = tube
        self._owner = owner
        self._guarded = guarded
        self._knock = Countdown(get_hub().loop, KNOCK)

    def add(self, line: Line) -> None:
        """One more, on a line that watches the tube."""
        bell = Bell(line, self)
        self.all[bell] = None
        self._spare.append(bell)

    # --- waiting -------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Have one wait for a job, or soon; where no more can be had, the tube is looked at now and then."""
        if self.promised:
            return
        if self._spare:
            self.waiting = self._spare.pop()
            self.waiting.reserve()
            return
        if self.dialling is None and len(self.all) < MOST and monotonic() >= self._dial_at:
            self._dial()
        if not (self.promised or self._knock.active):
            self._knock.start(self._guarded, self._owner.look)

    @property
    def promised(self) -> bool:
        """A bell waits for a job, or will in a moment. After a failure the next one that is dialled does not count."""
        return self.waiting is not None or (self.dialling is not None and self._redial == _REDIAL)

    def wait_no_more(self) -> None:
        """Whatever it got by now is heard before."""
        if self.waiting is not None:
            self.waiting.pipe.poll()
        if self.waiting is not None:
            self.waiting.retire()
            self.waiting = None

    def settle(self, bell: Bell, job: ReservedJob, *, again: bool) -> bool:
        """Say how the job of ``bell`` ended, and if none waits have it wait ``again``; returns whether it does."""
        again = again and self.waiting is None
        bell.settle(job, again)
        if again:
            self.waiting = bell
        else:
            self._spare.append(bell)
        return again

    def free(self, job: ReservedJob) -> None:
        """If a bell keeps ``job``, which is no longer ours, that one can wait again."""
        bell = job.keeper
        if isinstance(bell, Bell) and bell.job is job:
            bell.job = None
            self._spare.append(bell)
            self._owner.changed()

    @property
    def unsent(self) -> int:
        return sum(bell.unanswered + bell.pipe.unsent for bell in self.all)

    @property
    def silent_for_good(self) -> bool:
        """None can ring any more, unless it is told to wait."""
        return not (self.waiting or self.dialling or any(bell.retired for bell in self.all))

    # --- what a bell tells ---------------------------------------------------------------------------------

    def rang(self, bell: Bell, job: ReservedJob) -> None:
        self.waiting = None
        self._owner.rang(job)

    def silent(self, bell: Bell) -> None:
        self.waiting = None
        self._spare.append(bell)
        self._owner.changed()

    def refused(self, verb: str, message: Message) -> None:
        self._owner.refused(verb, message)

    def buried(self, message: Message) -> None:
        self._owner.buried(message)

    def stranded(self, verb: str, message: Message) -> None:
        self._owner.stranded(verb, message)

    def gone(self, bell: Bell, error: Exception) -> None:
        del self.all[bell]
        if self.waiting is bell:
            self.waiting = None
        if bell in self._spare:
            self._spare.remove(bell)
        self._owner.broke(bell.job, bell.pipe.cut(), error)
        if not isinstance(error, BrokerUnreachable):
            self._owner.failed(error)
        elif self.open and not (bell.retired or self.dialling):
            self._dial(_REDIAL)
        self._owner.changed()

    # --- they come and go ----------------------------------------------------------------------------------

    def _dial(self, pause: float = 0.0) -> None:
        self.dialling = gevent.spawn(self._dial_one, pause)

    def _dial_one(self, pause: float) -> None:
        try:
            gevent.sleep(pause)
            with dial(self._node) as line:
                line.subscribe(self._tube)
                if self.open:
                    self.add(line)
                    self._redial = _REDIAL
        except BrokerUnreachable as error:
            self.postpone(error)
        except FrameworkError as error:
            self._owner.failed(error)
        self.dialling = None
        self._owner.changed()

    def postpone(self, error: BrokerUnreachable) -> None:
        """One could not be dialled: those that stand go on. Where the server is away, they find so themselves."""
        self._dial_at = monotonic() + self._redial
        if self._redial == _REDIAL:
            log.warning(
                "no connection more to beanstalkd can be had, so a tube without jobs is looked at every %g s; where open files "
                "are few, raise `ulimit -n`: %s", KNOCK, error,
            )  # fmt: skip
        self._redial = min(self._redial * 2, _REDIAL_CAP)

    def add_no_more(self) -> None:
        """Not even the one that is being dialled, which a network that is gone could hold up for seconds."""
        self.open = False
        if self.dialling is not None:
            self.dialling.kill(block=False)
            self.dialling = None

    def check(self, now: float) -> None:
        """End those whose server owes an answer for too long, and those that are not needed; ping those that keep a job."""
        for bell in [bell for bell in self.all if bell.overdue(now)]:
            bell.pipe.poll()
            if bell.pipe.open and bell.overdue(now):
                self._drop(bell, f"beanstalkd {self._node} gave no answer for {reserved_job.GRACE:g} s")
        for bell in self.all:
            bell.ping()
        for bell in [bell for bell in self._spare if now - bell.since > SPARE and not bell.unanswered][:-1]:
            self._spare.remove(bell)
            bell.retire()

    def drop_retired(self) -> None:
        """Bells that announced their end, and whose server has not closed: the server is away, or it would have answered."""
        for bell in [bell for bell in self.all if bell.retired]:
            self._drop(bell, f"beanstalkd {self._node} did not close a connection")

    def _drop(self, bell: Bell, why: str) -> None:
        bell.pipe.close()
        self.gone(bell, BrokerUnreachable(why))

    def close(self) -> list[bytes]:
        """End them all; returns the commands that could not be handed over whole."""
        cut = [line for bell in self.all for line in bell.pipe.cut()]
        self._end(Pipe.close)
        return cut

    def forget(self) -> None:
        """In a forked child: they are the parent's."""
        self._end(Pipe.forget)

    def _end(self, how: Callable[[Pipe], None]) -> None:
        self.add_no_more()
        self._knock.close()
        for bell in self.all:
            how(bell.pipe)
        self.all.clear()
        self._spare.clear()
        self.waiting = None
