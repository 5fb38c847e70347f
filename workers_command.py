"""The first moments of ``workers``: it can be stopped cleanly while the rest of it is imported, which takes most of a second.

It imports nothing but what the interpreter has at hand. What it says and how it ends is what ``framework.cli`` would.
"""

from __future__ import annotations

import os
import signal
import sys
from select import select
from types import FrameType

_SERVES = {"run", "nsqd", "nsqlookupd"}
"""Verbs that run until told to stop: a signal is how they end."""
_TO_AN_END = {"backup", "drain-to", "inspect", "verify"}
"""Flags of ``nsqd`` with which it does not: whoever waits for it must not take an end before its work for the end of that."""


class Early:
    """Ends the process at one signal, as long as nobody has taken that over (``framework.cli.signals``)."""

    def __init__(self, number: signal.Signals, code: int) -> None:
        self._code = code
        self.before = signal.signal(number, self)
        """What the signal does otherwise."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        words = f"workers: {signal.Signals(number).name} came before anything was started\n"
        if select([], [2], [], 0)[1]:  # else nobody reads, and writing could wait for ever
            os.write(2, words.encode())
        # An exception would end in a traceback wherever an import or a destructor swallows it.
        os._exit(self._code)


def _is_to_serve(arguments: list[str]) -> bool:
    flags = {one.lstrip("-").partition("=")[0] for one in arguments if one.startswith("-")}
    return bool(arguments) and arguments[0] in _SERVES and not flags & _TO_AN_END


def _is_of_several(arguments: list[str]) -> bool:
    """It will be a master, or one of its processes: SIGHUP does not end these."""
    flagged = any(one.partition("=")[0] == "--processes" for one in arguments)
    return arguments[:1] == ["run"] and (flagged or bool(os.environ.get("WORKERS_PROCESSES")))


def _ignore_early() -> None:
    """What asks a master for something. It has the newest code and settings anyway, and no processes yet."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if "WORKERS_MASTER_FD" not in os.environ:  # else what handlers start would ignore them too
        for number in (signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU):
            signal.signal(number, signal.SIG_IGN)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The log has no lines yet: there is nothing to open again."""


def _fill_closed() -> None:
    """Of stdin, stdout and stderr: else the app's first file would be number 2, and get what is logged."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def main() -> None:
    """What the console script ``workers`` calls."""
    _fill_closed()
    serves = _is_to_serve(sys.argv[1:])
    if sys.argv[1:2] == ["run"]:
        signal.signal(signal.SIGUSR1, _nothing)
    if _is_of_several(sys.argv[1:]):
        _ignore_early()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # by which nohup asks for it
            Early(number, 0 if serves else 128 + number)
    from framework.cli import main as rest  # noqa: PLC0415

    rest()
