"""What a forked child does with what goes on for its parent, such as connections, step by step. It knows no protocol.

The only ``register_at_fork`` of the house: what is registered there is called in the order of the imports, which nobody sees.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol
from weakref import WeakSet

import gevent
from gevent import monkey


class Step(IntEnum):
    """They come one after the other."""

    WRITING = 0
    """What writes log lines: its thread stayed in the parent, perhaps with a lock, and any later step may say something."""
    QUEUED = 1
    """Lines that wait are the parent's to write."""
    SIGNALS = 2
    """Before anything that takes time: a signal that comes to the child would stop its parent."""
    THREADS = 3
    """Threads, which are not in the child."""
    CONNECTIONS = 4
    """Connections, listeners and whatever else runs on a hub."""


class Forgetting(Protocol):
    """A connection, or else what runs on the hub."""

    def forget(self) -> object:
        """Stop all that goes on, and ``let_go`` of sockets, without a word to any peer.

        Returns True where its hub is one that still shares the parent's epoll."""


def let_go(fd: int) -> None:
    """Put nothing in the place of the socket ``fd``: not a word goes out on it, and the peer sees the parent's end,
    whatever becomes of the child. Its number stays taken, so that whoever closes it later closes nothing else."""
    if fd < 0:  # closed by now
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)


_open: dict[Step, WeakSet[Forgetting]] = {step: WeakSet() for step in Step}
_always: dict[Step, list[Callable[[], object]]] = {step: [] for step in Step}


def forget_in_child(one: Forgetting, step: Step = Step.CONNECTIONS) -> None:
    """Have ``one`` forgotten in every child that is forked while it lives."""
    _open[step].add(one)


def call_in_child(step: Step, work: Callable[[], object]) -> None:
    """For a module, whose state is that of the process: call ``work`` in every child."""
    _always[step].append(work)


def living(step: Step = Step.CONNECTIONS) -> list[Forgetting]:
    """What a child would forget now."""
    return list(_open[step])


def _all(step: Step) -> list[Callable[[], object]]:
    return [*_always[step], *(one.forget for one in living(step))]


def _done(work: Callable[[], object]) -> bool:
    """Call it; whether its hub still shares the parent's epoll. One that fails does not keep the others from being called."""
    try:
        return work() is True
    except Exception:
        traceback.print_exc()
        return True


def _forget_all() -> None:
    shared = [_done(work) for step in Step for work in _all(step)]
    if any(shared) and not monkey.is_module_patched("os"):  # gevent's own fork does so
        gevent.reinit()


os.register_at_fork(after_in_child=_forget_all)
