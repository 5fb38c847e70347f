"""The log in a file: stderr itself is that file, and it is opened again where somebody has moved it away, as logrotate does."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from framework.errors import BadSetting

log = logging.getLogger(__name__)

_STDERR = 2
_MODE = 0o640
_opened: list[Path] = []
"""The file of the log, where it has one."""


def write_to(path: Path) -> None:
    """From now on all that this process writes to stderr is appended to ``path``, and what its children write.

    Raises BadSetting, and then nothing has changed.
    """
    path = path.absolute()  # a handler may change the folder
    try:
        _open(path)
    except OSError as error:
        raise BadSetting(
            f"--log-file {path}: {error.strerror}: give a file that may be written, in a folder that exists"
        ) from None
    _opened[:] = [path]


def open_again() -> None:
    """For SIGUSR1. From any thread."""
    if not _opened:
        log.info("SIGUSR1: the log goes to stderr, so there is no file to open again; --log-file FILE has it in one")
        return
    try:
        _open(_opened[0])
    except OSError as error:
        log.error("SIGUSR1: the log stays where it was: %s: %s", _opened[0], error.strerror)
    else:
        log.info("SIGUSR1: %s is opened again", _opened[0])


def _open(path: Path) -> None:
    # A pipe that nobody reads would keep this process here; with O_NONBLOCK it is refused.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK, _MODE)
    try:
        os.set_blocking(fd, True)
        os.dup2(fd, _STDERR)  # at once: no line is between two files
    finally:
        os.close(fd)
