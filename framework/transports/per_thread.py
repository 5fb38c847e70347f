"""What all threads of a process publish through: a ``Failover`` for each of them, closed together. It knows no protocol."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from gevent import monkey

from framework import hubs
from framework.errors import PublishError
from framework.forked import forget_in_child
from framework.transports.circuit import Circuit
from framework.transports.failover import Failover
from framework.transports.publish_link import PublishLink

# The patched ones are of a greenlet, not of a thread.
_thread_local = monkey.get_original("threading", "local")
_new_lock = monkey.get_original("_thread", "RLock")

Command = TypeVar("Command")


class PerThread(Generic[Command]):
    """A ``Failover`` for each native thread that publishes, because each has a hub of its own; greenlets of one thread share one.

    ``dial(node, timeout)`` makes a link to one of ``nodes()``. ``broker``: its name in errors; ``nowhere``: what is to be said
    where there is no node.
    """

    def __init__(
        self, nodes: Callable[[], Collection[str]], dial: Callable[[str, float], PublishLink[Command]], *, broker: str,
        nowhere: str = "",
    ) -> None:  # fmt: skip
        self._dial = dial
        self._broker = broker
        self._circuit = Circuit(nodes, dial, broker=broker, nowhere=nowhere)
        self._here = _thread_local()
        self._all: weakref.WeakSet[Failover[Command]] = weakref.WeakSet()
        self._closed = False
        self._lock = _new_lock()  # nobody waits for anything while holding it
        forget_in_child(self)

    def here(self) -> Failover[Command]:
        """This thread's. Raises PublishError after ``close``."""
        if self._closed:
            raise PublishError("the producer is closed: make a new one")
        failover: Failover[Command] | None = getattr(self._here, "failover", None)
        return failover if failover is not None else self._make_here()

    def _make_here(self) -> Failover[Command]:
        _begin_hub()
        with self._lock:  # so that ``close`` either finds it or has come before it
            if self._closed:
                raise PublishError("the producer is closed: make a new one")
            failover = self._here.failover = self._make()
            self._all.add(failover)
            return failover

    def _make(self) -> Failover[Command]:
        return Failover(self._circuit, self._dial, broker=self._broker)

    def close(self) -> None:
        """Close every one; publishes that wait for an answer fail."""
        with self._lock:
            self._closed = True
            failovers = list(self._all)
        self._circuit.close()
        for failover in failovers:
            failover.close()

    def forget(self) -> bool:
        """In a forked child: begin anew; whether there was anything to forget."""
        failovers = list(self._all)
        for failover in failovers:
            failover.forget()
        self._here = _thread_local()
        self._lock = _new_lock()  # a thread that is not in this process may hold the other
        self._all.clear()
        self._circuit.forget()
        return bool(failovers)


def _begin_hub() -> None:
    """Of this thread. Raises PublishError where the process may open no more files."""
    try:
        hubs.begin()
    except OSError as error:
        raise PublishError(f"this thread cannot begin to publish: {error.strerror}", stored=False) from error


def raise_first(answers: Sequence[PublishError | None]) -> None:
    """The error of a request for several messages, if one of them was not stored."""
    error = next(filter(None, answers), None)
    if error is None:
        return
    if len(answers) == 1 or all(answer is not None and answer.stored is False for answer in answers):
        raise error
    stored = f"{answers.count(None)} of {len(answers)} messages are stored"
    raise PublishError(f"{stored}; of the others: {error}", stored=None) from error
