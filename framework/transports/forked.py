"""What a forked child does with its parent's connections, and with whatever else goes on for the parent. It knows no protocol."""

from __future__ import annotations

import os
import traceback
from typing import Protocol
from weakref import WeakSet

import gevent
from gevent import monkey


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


_open: WeakSet[Forgetting] = WeakSet()


def forget_in_child(one: Forgetting) -> None:
    """Have ``one`` forgotten in every child that is forked while it lives."""
    _open.add(one)


def _forget(one: Forgetting) -> bool:
    """One that fails keeps no other."""
    try:
        return one.forget() is True
    except Exception:
        traceback.print_exc()
        return True


def _forget_all() -> None:
    shared = [_forget(one) for one in list(_open)]
    if any(shared) and not monkey.is_module_patched("os"):  # gevent's own fork does so
        gevent.reinit()


os.register_at_fork(after_in_child=_forget_all)
