"""Remembers which nodes fail the producers of a process, so that no publish waits again for a broker that is known to be down.

When every node fails, a publish is refused at once if publishes have waited in vain for as long as its own timeout. A native
thread dials the failing nodes until they answer, because a thread that publishes may not turn its hub between two publishes. A
node that accepted a connection and did not answer a publish must answer a harmless command as well.
"""

from __future__ import annotations

import atexit
import random
import weakref
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any, Protocol

import gevent
from gevent import monkey
from gevent.hub import get_hub

from framework import hubs
from framework.errors import REFUSALS, BrokerRefuses, BrokerUnreachable, FrameworkError, PublishError, WrongUse, words_of
from framework.observe import hublog

log = hublog.get(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two looks at a broker that is down."""
_LONGEST_BESIDE = 10.0
"""The same, when only some of its nodes fail: no publish is refused for them."""
_DIAL = 3.0
"""Seconds that a node has to accept the connection of the thread."""
_AS_LONG = 1.05
"""Times what somebody has waited in vain: what is left of a timeout after some computing is the same timeout to its caller."""
_WORTH_SAYING = 1.0
"""Seconds after which it is logged that a broker is down. A publish that gives up before that raises its own error."""
_END = 1.0
"""Seconds that the end of the process waits for the thread."""
# the patched ones are of a greenlet, not of a thread
_start_thread = monkey.get_original("_thread", "start_new_thread")
_new_lock = monkey.get_original("_thread", "allocate_lock")
_new_rlock = monkey.get_original("_thread", "RLock")


class Probe(Protocol):
    """A connection, as far as it is asked for here."""

    def prove(self, until: float) -> Exception | None:
        """Wait ``until`` then, at most, for the answer to what is like a publish and stores nothing; why there was none."""

    def close(self) -> None: ...


class Circuit:
    """Shared by all threads that publish through one producer.

    ``dial(node, timeout)`` blocks until the node has accepted the connection; the thread closes the connections that it makes
    so. ``broker``: its name in errors. ``nowhere``: the words of the error where ``nodes()`` names none.
    """

    def __init__(
        self, nodes: Callable[[], Collection[str]], dial: Callable[[str, float], Probe], *, broker: str, nowhere: str = ""
    ) -> None:
        self._find = nodes
        self._dial = dial
        self._broker = broker
        self._nowhere = nowhere
        self.known: frozenset[str] = frozenset()
        """The nodes, as of the last look."""
        self.looked_at = 0.0
        self.mute: set[str] = set()
        """Nodes that accepted a connection, and answered a publish neither in time nor since."""
        self._failing: dict[str, float] = {}  # node -> since when
        self._words: dict[str, str] = {}  # node -> why
        self._down_since: float | None = None
        self._patience = 0.0  # the longest that a publish has waited in vain since then
        self._closed = False
        self._lock = _new_rlock()  # of the thread: while it is held, nothing else is waited for
        self._thread: _Thread | None = None
        _everywhere.add(self)

    # --- whoever publishes ---------------------------------------------------------------------------------

    def check(self, timeout: float) -> None:
        """Raises PublishError when the broker has been down for as long as a publish of ``timeout`` seconds would wait."""
        since = self._down_since
        if since is None:
            return
        seconds = monotonic() - since
        if timeout <= _AS_LONG * self._patience or seconds >= timeout:
            raise PublishError(f"no {self._broker} could be reached for {seconds:.1f} s: {self._why()}", stored=False)

    def nodes(self) -> list[str]:
        """Every node, those that fail last. Raises BrokerUnreachable where there is none, or that cannot be known; PublishError
        where it never will be."""
        started = monotonic()
        try:
            known = self._find()
            if not known:
                raise BrokerUnreachable(self._nowhere)
        except WrongUse as error:
            raise PublishError(str(error), stored=False) from error
        except BrokerRefuses:  # who says so is not down
            raise
        except FrameworkError as error:
            self._words = {"": str(error)}
            self._go_down(started)
            raise
        self.known, self.looked_at = frozenset(known), started
        for node in self._failing.keys() - self.known:
            self._failing.pop(node, None)
            self.mute.discard(node)
        return sorted(known, key=lambda node: (node in self._failing, random.random()))

    def failed(self, node: str, since: float, error: Exception) -> None:
        """``node`` cannot be dialled, or does not answer. A node that rejects our credentials is not down."""
        if isinstance(error, REFUSALS):
            return
        self._failing.setdefault(node, since)
        self._words[node] = words_of(node, error)
        if self.known <= self._failing.keys():
            self._go_down(max(self._failing.values()))
        else:
            self._begin_probing()

    def unanswered(self, node: str, error: Exception) -> None:
        """``node`` has not answered a publish for long."""
        self.mute.add(node)
        self.failed(node, monotonic(), error)

    def let_in(self, node: str) -> None:
        """``node`` accepted a connection. For a mute node this changes nothing."""
        if node not in self.mute:
            self.answered(node)

    def answered(self, node: str) -> None:
        """``node`` answers publishes, as far as is known."""
        self.mute.discard(node)
        if self._failing or self._down_since is not None:
            self._failing.pop(node, None)
            self._words.pop(node, None)
            self._words.pop("", None)
            self._down_since, self._patience = None, 0.0

    def gave_up(self, timeout: float) -> None:
        """A publish has waited for ``timeout`` seconds in vain: while the broker is down, none waits that long again."""
        if self._down_since is not None:
            self._patience = max(self._patience, timeout)

    def close(self) -> None:
        self._closed = True
        if (thread := self._thread) is not None:
            thread.stop()

    def forget(self) -> None:
        """In a forked child: begin anew, without the thread."""
        self._failing.clear()
        self.mute.clear()
        self._words.clear()
        self._down_since, self._patience = None, 0.0
        self._lock, self._thread = _new_rlock(), None

    def _go_down(self, since: float) -> None:
        if self._down_since is None:
            self._down_since = since
        self._begin_probing()

    def _why(self) -> str:
        return "; ".join(list(self._words.values()))

    # --- the thread ----------------------------------------------------------------------------------------

    def _begin_probing(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = _Thread(self)

    def probed_enough(self) -> bool:
        """Whether the thread may end. What fails from now on begins another one."""
        with self._lock:
            over = self._closed or not (self._failing or self._down_since is not None)
            if over:
                self._thread = None
        return over

    def probe(self, everything: bool) -> float:
        """Dial what fails, or ``everything``; returns the longest that the next look may wait. In the thread: it blocks."""
        down = self._down_since is not None
        try:
            nodes = self.nodes()
        except FrameworkError:
            nodes = []
        jobs = [gevent.spawn(self._try, node) for node in nodes if everything or down or node in self._failing]
        gevent.joinall(jobs)
        if self._down_since is None:
            return _LONGEST_BESIDE
        return _LONGEST_PAUSE

    def _try(self, node: str) -> None:
        started = monotonic()
        try:
            self._ask(self._dial(node, _DIAL), node)
        except FrameworkError as error:
            self.failed(node, started, error)
        else:
            self.answered(node)

    def _ask(self, link: Probe, node: str) -> None:
        try:
            if node in self.mute and (error := link.prove(monotonic() + _DIAL)) is not None:
                raise error
        finally:
            link.close()

    def note(self, said: bool) -> bool:
        """Log that it is down, once it has been for a while, and that it is back; whether the former was ``said`` and holds.

        In the thread: a log call may block."""
        since = self._down_since
        if said and since is None:
            log.info("there is a %s to publish to again", self._broker)
        elif not said and since is not None and monotonic() - since >= _WORTH_SAYING:
            log.warning("no %s can be reached to publish to: %s", self._broker, self._why())
            return True
        return said and since is not None


class _Thread:
    """Looks at one circuit until it is closed, or dropped, or nothing fails."""

    def __init__(self, circuit: Circuit) -> None:
        self._circuit = weakref.ref(circuit)
        self._stopped = _new_lock()  # held until it is to stop
        self._running = _new_lock()  # held until it has ended
        self._stopped.acquire()
        self._running.acquire()
        self._hub: Any = None
        _start_thread(self._run, ())

    def stop(self) -> None:
        """From any thread; returns at once."""
        if self._stopped.locked():
            self._stopped.release()

    def join(self) -> None:
        self._running.acquire(True, _END)

    def _run(self) -> None:
        try:
            if self._begun():
                try:
                    self._look()
                finally:
                    get_hub().destroy(destroy_loop=True)
        finally:
            self._running.release()

    def _begun(self) -> bool:
        """Have a hub, once this process may open the files for it; whether it has one."""
        while self._circuit() is not None:
            try:
                hubs.begin()
            except OSError:
                if self._stopped.acquire(True, _LONGEST_PAUSE):
                    break
            else:
                return True
        return False

    def _look(self) -> None:
        pause, first, said = _FIRST_PAUSE, True, False
        while (circuit := self._circuit()) is not None and not circuit.probed_enough():
            looking = gevent.spawn(circuit.probe, first)
            while not looking.ready():
                looking.join(_FIRST_PAUSE)
                if not self._stopped.locked():
                    looking.kill()
            said = circuit.note(said)
            longest = looking.value or _LONGEST_PAUSE
            del circuit, looking
            if self._stopped.acquire(True, random.uniform(pause / 2, pause)):
                return
            pause, first = min(2 * pause, longest), False


_everywhere: weakref.WeakSet[Circuit] = weakref.WeakSet()


def _end_all() -> None:
    """An interpreter that ends beside a thread in the middle of a switch may crash."""
    threads = [circuit._thread for circuit in list(_everywhere) if circuit._thread is not None]
    for circuit in list(_everywhere):
        circuit.close()
    for thread in threads:
        thread.join()


atexit.register(_end_all)
