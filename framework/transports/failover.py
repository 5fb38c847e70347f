"""How one native thread publishes: through one link to one node at a time, replaced when it breaks. It knows no protocol.

A message that was certainly not stored is sent again, to any node, until a deadline. One that may be stored is never sent
again. The ``circuit`` knows when a broker is down.
"""

from __future__ import annotations

import itertools
import random
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Generic, TypeVar

import gevent
from gevent import monkey
from gevent.lock import BoundedSemaphore

from framework.errors import REFUSALS, BrokerRefuses, BrokerUnreachable, FrameworkError, PublishError, words_of
from framework.forked import let_go
from framework.transports.circuit import Circuit
from framework.transports.publish_link import InDoubt, PublishLink, Refused

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_LAST_TRY, _SHARE = 0.02, 0.05
"""Seconds that a try takes at least, where it is worth it, and the part of a publish's time. One that is cut short tells nothing
of a node, and hides what the one before it told."""
_WORTH_IT = 0.25
"""Seconds that are enough for a last try, however long the publish may take."""
_LOOK_AGAIN = 1.0
"""Seconds after which the only node is left if it refuses, to see whether there is another by now."""
_LEAST_DIAL, _MOST_DIAL = 1.0, 2.0
"""Seconds that each of many nodes has to accept a connection, if there is as much time; the last has all of it."""
# The patched one is of a greenlet, not of a thread.
_thread_ident = monkey.get_original("_thread", "get_ident")

Command = TypeVar("Command")


class Failover(Generic[Command]):
    """``dial(node, timeout)`` makes a link to one of the circuit's nodes."""

    def __init__(self, circuit: Circuit, dial: Callable[[str, float], PublishLink[Command]], *, broker: str) -> None:
        self._circuit = circuit
        self._dial_node = dial
        self._broker = broker
        self._link: PublishLink[Command] | None = None
        self._left: list[PublishLink[Command]] = []
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
        if answers.count(None) == len(answers):  # nearly always; what follows looks at each several times
            return [None] * len(answers)
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
        stored = answers.count(None)
        if stored < len(answers) and any(isinstance(each, Refused) for each in answers):
            refusing.add(link.node)
        if stored:
            self._heard(link)
        return answers

    def _heard(self, link: PublishLink[Command]) -> None:
        if self._circuit.mute:
            self._circuit.answered(link.node)

    def _pause_after(self, failure: Exception | None, attempt: int, until: float, timeout: float, refusing: set[str]) -> None:
        """Before the next try. Raises PublishError when there is no time for one, or no node left to try."""
        if refusing and refusing >= self._circuit.known:
            raise PublishError(str(failure), stored=False)
        left = until - monotonic()
        least = max(_LAST_TRY, min(_WORTH_IT, _SHARE * timeout))
        if self._closed or left < least:
            self._circuit.gave_up(timeout)
            raise PublishError(f"no {self._broker} took the messages within {timeout:g} s: {failure}", stored=False)
        gevent.sleep(min(_pause(attempt), left - least / 2))

    def _usable_link(self, until: float, timeout: float) -> PublishLink[Command]:
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

    def _taken(self, link: PublishLink[Command]) -> PublishLink[Command]:
        link.silent = partial(_note_silence, weakref.ref(self._circuit), link.node, self._broker)
        link.elsewhere = partial(_may_be_others, weakref.ref(self._circuit), link.node)
        self._left = [each for each in (*self._left, self._link) if each is not None and each.fileno() >= 0]
        self._link = link
        if self._closed:  # meanwhile, and by another thread perhaps, which had no link to close
            link.close()
            raise BrokerUnreachable("the producer was closed")
        return link

    def _dial(self, until: float, timeout: float) -> PublishLink[Command]:
        """Try every node once, in random order, those last that fail.

        Raises PublishError when every node rejects this client and none ever accepted it (a wrong secret, certificate or
        option), and when the broker is known to be down for long enough.
        """
        try:
            nodes = self._nodes(until)
        except BrokerRefuses as error:
            if self._admitted:
                raise
            raise PublishError(f"no {self._broker} accepts this client: {error}", stored=False) from error
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


def _may_be_others(circuit: weakref.ref[Circuit], node: str) -> bool:
    """There are, or were not when they were last looked for, which is a while ago."""
    return (there := circuit()) is None or bool(there.known - {node}) or monotonic() - there.looked_at > _LOOK_AGAIN


def _doubted(error: PublishError, doubt: InDoubt | None) -> PublishError:
    """What is to be said in the end of a command that was in doubt once."""
    if doubt is None or error.stored is not False:
        return error
    return PublishError(f"{error}; before that: {doubt}", stored=None)


def _pause(attempt: int) -> float:
    """Seconds, with full jitter: many publishers that lost one node do not come back at once."""
    return random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10)))
