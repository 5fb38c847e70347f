"""What one native thread publishes through: one link to one node at a time, found again when it breaks. It knows no protocol.

What was certainly not stored is sent again, to any node, until a deadline; what may be stored never is.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

import gevent
from gevent import monkey
from gevent.lock import BoundedSemaphore

from framework.errors import REFUSALS, BrokerUnreachable, FrameworkError, PublishError, words_of
from framework.transports.forked import let_go

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# the patched ones are of a greenlet, not of a thread
_thread_ident = monkey.get_original("_thread", "get_ident")
_thread_local = monkey.get_original("threading", "local")

Command = TypeVar("Command")
Command_contra = TypeVar("Command_contra", contravariant=True)


class NotStored(FrameworkError):
    """The broker certainly did not store the command, through no fault of the command: it may be sent again."""


class Refused(NotStored):
    """This node stores nothing now, and said so: another one may. Where there is no other, waiting does not help."""


class Link(Protocol[Command_contra]):
    """A connection to ``node`` that publishes."""

    node: str

    def usable(self) -> bool:
        """Whether nothing is known against it."""

    def ask(self, command: Command_contra) -> Exception | None:
        """Send it and wait for its answer: None is stored; else NotStored, Refused or PublishError."""

    def ask_each(self, commands: Sequence[Command_contra]) -> list[Exception | None]:
        """As ``ask`` for each, many of them under way; the answers in their order."""

    def close(self) -> None:
        """Close it, on its own thread; whoever waits for an answer gets NotStored or PublishError."""

    def shut(self) -> None:
        """End it from another native thread, whose hub then sees the end of the stream."""

    def fileno(self) -> int:
        """Of its socket; -1 when it has ended."""


class Outlet(Generic[Command]):
    """``dial(node, timeout)`` makes a link. ``deadline``: seconds after which what found no node is given up.

    ``broker``: its name in errors; ``nowhere``: what is to be said where ``nodes()`` knows of none.
    """

    def __init__(
        self, nodes: Callable[[], Collection[str]], dial: Callable[[str, float], Link[Command]], *, deadline: float, broker: str,
        nowhere: str = "",
    ) -> None:  # fmt: skip
        self._nodes = nodes
        self._dial_node = dial
        self._deadline = deadline
        self._broker = broker
        self._nowhere = nowhere
        self._link: Link[Command] | None = None
        self._dialling = BoundedSemaphore(1)
        self._failed_node = ""
        self._thread = _thread_ident()
        self._closed = False
        self._admitted = False

    def store(self, command: Command) -> None:
        """Return when a node has stored it. What was certainly not stored is tried again until the deadline."""
        until = monotonic() + self._deadline
        refusing: set[str] = set()
        for attempt in itertools.count():
            try:
                link = self._usable_link(until)
                outcome = link.ask(command)
            except FrameworkError as error:
                outcome = error
            if outcome is None:
                return
            if isinstance(outcome, PublishError):
                raise outcome
            if isinstance(outcome, Refused):
                refusing.add(link.node)
            self._pause_after(outcome, attempt, until, refusing)

    def store_each(self, commands: Sequence[Command]) -> list[PublishError | None]:
        """As ``store`` for each, many of them under way; the errors are returned in their place. A command that had to be
        sent again comes after those that had not."""
        until = monotonic() + self._deadline
        refusing: set[str] = set()
        answers = self._try_each(commands, until, refusing)
        for attempt in itertools.count():
            left = [i for i, each in enumerate(answers) if each is not None and not isinstance(each, PublishError)]
            if not left:
                break
            try:
                self._pause_after(answers[left[0]], attempt, until, refusing)
                again = self._try_each([commands[i] for i in left], until, refusing)
            except PublishError as error:
                again = [error] * len(left)
            for i, each in zip(left, again, strict=True):
                answers[i] = each
        return [each for each in answers if each is None or isinstance(each, PublishError)]  # which all are now

    def _try_each(self, commands: Sequence[Command], until: float, refusing: set[str]) -> list[Exception | None]:
        try:
            link = self._usable_link(until)
        except FrameworkError as error:
            return [error] * len(commands)
        answers = link.ask_each(commands)
        if any(isinstance(each, Refused) for each in answers):
            refusing.add(link.node)
        return answers

    def _pause_after(self, failure: Exception | None, attempt: int, until: float, refusing: set[str]) -> None:
        """Before the next try. Raises PublishError when there is no time for one, or nobody left to try."""
        if refusing and refusing >= set(self._nodes()):
            raise PublishError(str(failure), stored=False)
        pause = _pause(attempt)
        if self._closed or monotonic() + pause > until:
            raise PublishError(f"no {self._broker} took the messages within {self._deadline:g} s: {failure}", stored=False)
        gevent.sleep(pause)

    def _usable_link(self, until: float) -> Link[Command]:
        """The link there is, or a new one: one greenlet dials, the others wait for it."""
        if (link := self._link) is not None and link.usable():
            return link
        if not self._dialling.acquire(timeout=max(0.0, until - monotonic())):
            raise BrokerUnreachable(f"no {self._broker} could be reached in time")
        try:
            if self._link is None or not self._link.usable():
                self._failed_node = self._link.node if self._link is not None else ""
                self._link = None
                self._link = self._dial(until)
            return self._link
        finally:
            self._dialling.release()

    def _dial(self, until: float) -> Link[Command]:
        """Try every node once, in random order, the one that has just failed last.

        Raises PublishError when each refuses us and none ever let us in: a wrong secret, certificate or option."""
        nodes = sorted(self._nodes(), key=lambda node: (node == self._failed_node, random.random()))
        failures = [] if nodes else [self._nowhere]
        refusals = 0
        for node in nodes:
            left = until - monotonic()
            if left <= 0 or self._closed:
                break
            try:
                link = self._dial_node(node, left)
            except FrameworkError as error:
                failures.append(words_of(node, error))
                refusals += isinstance(error, REFUSALS)
            else:
                self._admitted = True
                return link
        if nodes and refusals == len(nodes) and not self._admitted:
            raise PublishError(f"no {self._broker} lets us in: {'; '.join(failures)}", stored=False)
        raise BrokerUnreachable("; ".join(failures) or "the producer was closed")

    def close(self) -> None:
        """From another native thread the socket is only shut: its watchers belong to the hub over there."""
        self._closed = True
        if self._link is not None:
            if _thread_ident() == self._thread:
                self._link.close()
            else:
                self._link.shut()

    def forget(self) -> None:
        """In a forked child: let go of the connection, which is the parent's, without a word on it."""
        link, self._link = self._link, None
        if link is None or (fd := link.fileno()) < 0:
            return
        let_go(fd)
        if _thread_ident() == self._thread:  # else its hub is not in this process
            link.close()

    def __del__(self) -> None:
        """The thread has ended, or the producer was dropped, and nothing else would close the socket."""
        if not sys.is_finalizing():
            self.close()


def _pause(attempt: int) -> float:
    """Seconds, with full jitter: many publishers that lost one node do not come back at once."""
    return random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10)))


def raise_first(answers: Sequence[PublishError | None]) -> None:
    """The error of a request for several messages, if one of them was not stored."""
    error = next(filter(None, answers), None)
    if error is None:
        return
    if len(answers) == 1 or all(answer is not None and answer.stored is False for answer in answers):
        raise error
    stored = f"{answers.count(None)} of {len(answers)} messages are stored"
    raise PublishError(f"{stored}; of the others: {error}", stored=None) from error


class Outlets(Generic[Command]):
    """An outlet for each native thread that publishes, because each has a hub of its own; greenlets of one thread share one."""

    def __init__(self, make: Callable[[], Outlet[Command]]) -> None:
        self._make = make
        self._here = _thread_local()
        self._all: weakref.WeakSet[Outlet[Command]] = weakref.WeakSet()
        self._closed = False
        _everywhere.add(self)

    def here(self) -> Outlet[Command]:
        """This thread's. Raises PublishError after ``close``."""
        if self._closed:
            raise PublishError("the producer is closed: make a new one")
        outlet: Outlet[Command] | None = getattr(self._here, "outlet", None)
        if outlet is None:
            outlet = self._here.outlet = self._make()
            self._all.add(outlet)
        return outlet

    def close(self) -> None:
        """Close every one; publishes that wait for an answer fail."""
        self._closed = True
        for outlet in list(self._all):
            outlet.close()

    def forget(self) -> bool:
        """In a forked child: begin anew; whether there was anything to forget."""
        outlets = list(self._all)
        for outlet in outlets:
            outlet.forget()
        self._here = _thread_local()
        self._all.clear()
        return bool(outlets)


_everywhere: weakref.WeakSet[Outlets[Any]] = weakref.WeakSet()


def _forget_all() -> None:
    """A forked child would take the answers to its parent's publishes for its own, and share the hub's epoll with it."""
    forgotten = [outlets.forget() for outlets in list(_everywhere)]
    if any(forgotten) and not monkey.is_module_patched("os"):  # gevent's own fork does so
        gevent.reinit()


os.register_at_fork(after_in_child=_forget_all)
