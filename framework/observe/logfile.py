"""The log in a file: stderr itself is that file, and it is opened again where somebody has moved it away, as logrotate does."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import gevent
from gevent import monkey

from framework.errors import BadSetting
from framework.observe.background import Background

log = logging.getLogger(__name__)

_STDERR = 2
_MODE = 0o640
_PATIENCE = 2.0
"""Seconds that a disk may take to open a file for a reload."""
_file: list[Path] = []
"""The one of the log, where it has one."""
_times = 0
_start_new_thread = monkey.get_original("_thread", "start_new_thread")
_allocate_lock = monkey.get_original("_thread", "allocate_lock")
_turn = _allocate_lock()


def path() -> Path | None:
    """Where the log is, or is to be, from now on; None: on the stderr that the process was started with."""
    return _file[0] if _file else None


def times_opened() -> int:
    """A process that was started before the newest time has inherited another file."""
    return _times


def write_to(path: Path) -> None:
    """From now on all that this process writes to stderr is appended to ``path``, and what its children write.

    It blocks as long as the disk does. Raises BadSetting, and then nothing has changed.
    """
    path = path.absolute()  # a handler may change the folder
    try:
        fd = _open(path)
    except OSError as error:
        raise _bad(path, error.strerror) from None
    _file[:] = [path]
    _take(fd)


def check(path: Path) -> None:
    """Whether ``write_to`` would do. Only this greenlet waits. Raises BadSetting also for a disk that does not answer."""
    ended: list[str | None] = []

    def open_it() -> None:
        try:
            os.close(_open(path.absolute()))
            ended.append("")
        except OSError as error:
            ended.append(error.strerror)

    _start_new_thread(open_it, ())
    until = time.monotonic() + _PATIENCE
    while not ended:
        if time.monotonic() > until:
            raise _bad(path, f"the disk has not answered for {_PATIENCE:g} s")
        gevent.sleep(0.005)
    if ended[0] != "":
        raise _bad(path, ended[0])


def move_to(path: Path) -> None:
    """As ``write_to``, soon: nobody waits for the disk, and the log says when it cannot be."""
    _file[:] = [path.absolute()]
    _opener.put("reload")


def open_again() -> None:
    """For SIGUSR1. From any thread, and from callbacks of a hub: nobody waits for the disk."""
    _opener.put("SIGUSR1")


def _open_now(why: str) -> None:
    path = _file[0] if _file else None
    if path is None:
        log.info("%s: the log goes to stderr, so there is no file to open again; --log-file FILE has it in one", why)
        return
    try:
        fd = _open(path)
    except OSError as error:
        log.error("%s: the log stays where it was: %s: %s", why, path, error.strerror)
        return
    if _file != [path]:  # a reload has named another one meanwhile, and comes next
        os.close(fd)
        return
    _take(fd)
    log.info("%s: %s is opened again", why, path)


_opener: Background[str] = Background(_open_now, lambda count: "SIGUSR1", join=lambda each: each[-1])
"""What comes while a disk stands still is done once."""


def _open(path: Path) -> int:
    # A pipe that nobody reads would keep this process here; with O_NONBLOCK it is refused.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_NONBLOCK, _MODE)
    os.set_blocking(fd, True)
    return fd


def _take(fd: int) -> None:
    global _times  # noqa: PLW0603
    try:
        with _turn:
            os.dup2(fd, _STDERR)  # at once: no line is between two files
            _times += 1
    finally:
        os.close(fd)


def _bad(path: Path, why: str | None) -> BadSetting:
    return BadSetting(f"--log-file {path}: {why}: give a file that may be written, in a folder that exists")
