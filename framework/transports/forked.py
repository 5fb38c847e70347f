"""What a forked child does with its parent's sockets. It knows no protocol."""

from __future__ import annotations

import os


def let_go(fd: int) -> None:
    """Put nothing in the place of the socket ``fd``: not a word goes out on it, and the peer sees the parent's end,
    whatever becomes of the child. Its number stays taken, so that whoever closes it later closes nothing else."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)
