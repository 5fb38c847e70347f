"""The connection through which one native thread publishes: one link to one node at a time, replaced when it breaks. It knows
no protocol.

A message that was certainly not stored is sent again, to any node, until a deadline. One that may be stored is never sent
again. The ``circuit`` knows when a broker is down.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

import gevent
from gevent import monkey
from gevent.lock import BoundedSemaphore

from framework.errors import REFUSALS, BrokerUnreachable, FrameworkError, PublishError, words_of
from framework.transports.circuit import Circuit
from framework.transports.forked import let_go

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_LAST_TRY = 0.02
"""Seconds that a try takes at least, where it is worth it."""
_LEAST_DIAL, _MOST_DIAL = 1.0, 2.0
"""Seconds that each of many nodes has to accept a connection, if there is as much time; the last has all of it."""
# the patched ones are of a greenlet, not of a thread
_thread_ident = monkey.get_original("_thread", "get_ident")
_thread_local = monkey.get_original("threading", "local")
_new_lock = monkey.get_original("_thread", "RLock")

Command = TypeVar("Command")
Command_contra = TypeVar("Command_contra", contravariant=True)


class NotStored(FrameworkError):
    """The broker certainly did not store the command, through no fault of the command: it may be sent again."""


class Refused(NotStored):
    """This node stores nothing now, and said so: another one may. Where there is no other, waiting does not help."""


class InDoubt(NotStored):
    """It may be stored, and may be sent again all the same, because the broker drops doubles. When there is no more time for
    that, a publisher is told that nothing is known."""


class Link(Protocol[Command_contra]):
    """A connection to ``node`` that publishes."""

    node: str
    silent: Callable[[], None]
    """Called on its hub when an answer is overdue; the outlet says what then."""

    def usable(self) -> bool:
        """Whether it can be used: it is connected, and no answer is long overdue."""

    def ask(self, command: Command_contra, until: float) -> Exception | None:
        """Send it and wait for its answer, ``until`` then at most: None is stored; else NotStored, Refused or PublishError."""

    def ask_each(self, commands: Sequence[Command_contra], timeout: float) -> list[Exception | None]:
        """As ``ask`` for each, many of them under way; the answers in their order. ``timeout``: seconds that each may take."""

    def prove(self, until: float) -> Exception | None:
        """Wait ``until`` then, at most, for the answer to a command that the broker refuses whoever sends it: it reads, then, and
        nothing is stored. Else why there was no answer."""

    def close(self) -> None:
        """Close it, on its own thread; publishes that wait for an answer get NotStored or PublishError."""

    def shut(self) -> None:
        """End it from another native thread, whose hub then sees the end of the stream."""

    def fileno(self) -> int:
        """Of its socket; -1 when it has ended."""


class Outlet(Generic[Command]):
    """``dial(node, timeout)`` makes a link to one of the circuit's nodes."""

    def __init__(self, circuit: Circuit, dial: Callable[[str, float], Link[Command]], *, broker: str) -> None:
        self._circuit = circuit
        self._dial_node = dial
        self._broker = broker
        self._link: Link[Command] | None = None
        self._left: list[Link[Command]] = []
        """Links whose answers are long overdue: the publishes on them go on waiting, and nothing more is sent there."""
        self._dialling = BoundedSemaphore(1)
        self._thread = _thread_ident()
        self._closed = False
        self._admitted = False

    def store(self, command: Command, timeout: float) -> None:
        """Return when a node has stored it. What was certainly not stored is tried again, for ``timeout`` seconds in all."""
        until = monotonic() + timeout
        refusing: set[str] = set()
        doubt: InDoubt | None = None
        try:
            for attempt in itertools.count():
                try:
                    link = self._usable_link(until, timeout)
                    outcome = link.ask(command, until)
                except FrameworkError as error:
                    outcome = error
                if outcome is None:
                    self._heard(link)
                    return
                if isinstance(outcome, PublishError):
                    self._circuit.gave_up(timeout)
                    raise outcome
                if isinstance(outcome, Refused):
                    refusing.add(link.node)
                doubt = outcome if isinstance(outcome, InDoubt) else doubt
                self._pause_after(outcome, attempt, until, timeout, refusing)
        except PublishError as error:
            raise _doubted(error, doubt) from error.__cause__

    def store_each(self, commands: Sequence[Command], timeout: float) -> list[PublishError | None]:
        """As ``store`` for each, many of them under way; the errors are returned in their place. A command that had to be
        sent again comes after those that had not. ``timeout``: seconds without anything being stored."""
        until = monotonic() + timeout
        refusing: set[str] = set()
        answers = self._try_each(commands, until, timeout, refusing)
        doubts: dict[int, InDoubt] = {}
        for attempt in itertools.count():
            left = [i for i, each in enumerate(answers) if each is not None and not isinstance(each, PublishError)]
            if not left:
                break
            doubts |= {i: doubt for i in left if isinstance(doubt := answers[i], InDoubt)}
            try:
                self._pause_after(answers[left[0]], attempt, until, timeout, refusing)
                again = self._try_each([commands[i] for i in left], until, timeout, refusing)
            except PublishError as error:
                again = [error] * len(left)
            if None in again:
                until = monotonic() + timeout
            for i, each in zip(left, again, strict=True):
                answers[i] = _doubted(each, doubts.get(i)) if isinstance(each, PublishError) else each
        if any(answers):
            self._circuit.gave_up(timeout)
        return [each for each in answers if each is None or isinstance(each, PublishError)]  # which all are now

    def _try_each(self, commands: Sequence[Command], until: float, timeout: float, refusing: set[str]) -> list[Exception | None]:
        try:
            link = self._usable_link(until, timeout)
        except FrameworkError as error:
            return [error] * len(commands)
        answers = link.ask_each(commands, timeout)
        if any(isinstance(each, Refused) for each in answers):
            refusing.add(link.node)
        if None in answers:
            self._heard(link)
        return answers

    def _heard(self, link: Link[Command]) -> None:
        if self._circuit.mute:
            self._circuit.answered(link.node)

    def _pause_after(self, failure: Exception | None, attempt: int, until: float, timeout: float, refusing: set[str]) -> None:
        """Before the next try. Raises PublishError when there is no time for one, or no node left to try."""
        if refusing and refusing >= self._circuit.known:
            raise PublishError(str(failure), stored=False)
        left = until - monotonic()
        if self._closed or left < _LAST_TRY:
            self._circuit.gave_up(timeout)
            raise PublishError(f"no {self._broker} took the messages within {timeout:g} s: {failure}", stored=False)
        gevent.sleep(min(_pause(attempt), left - _LAST_TRY / 2))

    def _usable_link(self, until: float, timeout: float) -> Link[Command]:
        """The link there is, or a new one: one greenlet dials, the others wait for it."""
        if (link := self._link) is not None and link.usable():
            return link
        self._circuit.check(timeout)
        if not self._dialling.acquire(timeout=max(0.0, until - monotonic())):
            raise BrokerUnreachable(f"no {self._broker} could be reached in time")
        try:
            if (link := self._link) is None or not link.usable():
                link = self._taken(self._dial(until, timeout))
            return link
        finally:
            self._dialling.release()

    def _taken(self, link: Link[Command]) -> Link[Command]:
        link.silent = partial(_note_silence, weakref.ref(self._circuit), link.node, self._broker)
        self._left = [each for each in (*self._left, self._link) if each is not None and each.fileno() >= 0]
        self._link = link
        if self._closed:  # meanwhile, and by another thread perhaps, which had no link to close
            link.close()
            raise BrokerUnreachable("the producer was closed")
        return link

    def _dial(self, until: float, timeout: float) -> Link[Command]:
        """Try every node once, in random order, those last that fail.

        Raises PublishError when every node rejects this client and none ever accepted it (a wrong secret, certificate or
        option), and when the broker is known to be down for long enough.
        """
        nodes = self._nodes(until)
        failures: list[str] = []
        refusals = 0
        for tried, node in enumerate(nodes):
            self._circuit.check(timeout)
            left = until - monotonic()
            if left <= 0 or self._closed:
                break
            others = len(nodes) - tried - 1
            started = monotonic()
            try:
                link = self._dial_node(node, min(left, max(left / (others + 1), _LEAST_DIAL), _MOST_DIAL if others else left))
            except FrameworkError as error:
                self._circuit.failed(node, started, error)
                failures.append(words_of(node, error))
                refusals += isinstance(error, REFUSALS)
            else:
                self._circuit.let_in(node)
                self._admitted = True
                return link
        if refusals == len(nodes) and not self._admitted:
            raise PublishError(f"no {self._broker} accepts this client: {'; '.join(failures)}", stored=False)
        raise BrokerUnreachable("; ".join(failures) or ("the producer was closed" if self._closed else "there was no time left"))

    def _nodes(self, until: float) -> list[str]:
        """As the circuit has them, the one whose connection has just ended behind the others. Raises BrokerUnreachable."""
        ended = self._link.node if self._link is not None else ""
        limit = gevent.Timeout(max(0.0, until - monotonic()))
        try:
            with limit:
                nodes = self._circuit.nodes()
        except gevent.Timeout as error:
            if error is not limit:
                raise
            raise BrokerUnreachable(f"which {self._broker} there is could not be known in time") from None
        if ended in nodes and len(nodes) > 1:
            nodes.remove(ended)
            nodes.append(ended)
        return nodes

    def close(self) -> None:
        """From another native thread the socket is only shut: its watchers belong to the hub over there."""
        self._closed = True
        for link in (*self._left, self._link):
            if link is None:
                continue
            if _thread_ident() == self._thread:
                link.close()
            else:
                link.shut()

    def forget(self) -> None:
        """In a forked child: let go of the connections, which are the parent's, without a word on them."""
        links = [link for link in (*self._left, self._link) if link is not None]
        self._left, self._link = [], None
        for link in links:
            if (fd := link.fileno()) < 0:
                continue
            let_go(fd)
            if _thread_ident() == self._thread:  # else its hub is not in this process
                link.close()

    def __del__(self) -> None:
        """The thread has ended, or the producer was dropped, and nothing else would close the socket."""
        if not sys.is_finalizing():
            self.close()


def _note_silence(circuit: weakref.ref[Circuit], node: str, broker: str) -> None:
    """A link lives as long as its hub has something to watch: through it nothing else must."""
    if (there := circuit()) is not None:
        there.unanswered(node, BrokerUnreachable(f"{broker} {node} does not answer"))


def _doubted(error: PublishError, doubt: InDoubt | None) -> PublishError:
    """What is to be said in the end of a command that was in doubt once."""
    if doubt is None or error.stored is not False:
        return error
    return PublishError(f"{error}; before that: {doubt}", stored=None)


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
    """An outlet for each native thread that publishes, because each has a hub of its own; greenlets of one thread share one.

    ``dial(node, timeout)`` makes a link to one of ``nodes()``. ``broker``: its name in errors; ``nowhere``: what is to be said
    where there is no node.
    """

    def __init__(
        self, nodes: Callable[[], Collection[str]], dial: Callable[[str, float], Link[Command]], *, broker: str, nowhere: str = ""
    ) -> None:
        self._dial = dial
        self._broker = broker
        self._circuit = Circuit(nodes, dial, broker=broker, nowhere=nowhere)
        self._here = _thread_local()
        self._all: weakref.WeakSet[Outlet[Command]] = weakref.WeakSet()
        self._closed = False
        self._lock = _new_lock()  # nobody waits for anything while holding it
        _everywhere.add(self)

    def here(self) -> Outlet[Command]:
        """This thread's. Raises PublishError after ``close``."""
        if self._closed:
            raise PublishError("the producer is closed: make a new one")
        outlet: Outlet[Command] | None = getattr(self._here, "outlet", None)
        return outlet if outlet is not None else self._make_here()

    def _make_here(self) -> Outlet[Command]:
        with self._lock:  # so that ``close`` either finds it or has come before it
            if self._closed:
                raise PublishError("the producer is closed: make a new one")
            outlet = self._here.outlet = self._make()
            self._all.add(outlet)
            return outlet

    def _make(self) -> Outlet[Command]:
        return Outlet(self._circuit, self._dial, broker=self._broker)

    def close(self) -> None:
        """Close every one; publishes that wait for an answer fail."""
        with self._lock:
            self._closed = True
            outlets = list(self._all)
        self._circuit.close()
        for outlet in outlets:
            outlet.close()

    def forget(self) -> bool:
        """In a forked child: begin anew; whether there was anything to forget."""
        outlets = list(self._all)
        for outlet in outlets:
            outlet.forget()
        self._here = _thread_local()
        self._lock = _new_lock()  # a thread that is not in this process may hold the other
        self._all.clear()
        self._circuit.forget()
        return bool(outlets)


_everywhere: weakref.WeakSet[Outlets[Any]] = weakref.WeakSet()


def _forget_all() -> None:
    """A forked child would take the answers to its parent's publishes for its own, and share the hub's epoll with it."""
    forgotten = [outlets.forget() for outlets in list(_everywhere)]
    if any(forgotten) and not monkey.is_module_patched("os"):  # gevent's own fork does so
        gevent.reinit()


os.register_at_fork(after_in_child=_forget_all)
