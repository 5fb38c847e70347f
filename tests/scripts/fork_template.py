"""A Python that has imported what a command imports, and forks itself for each one that a test starts: see ``tests/forked.py``.

Run as ``python -c`` of this file's text, with the number of its socket and "patched" or "plain". What is not in a real start:
the modules of the list below are there before the command asks for them.
"""

from __future__ import annotations

import array
import builtins
import gc
import importlib
import os
import resource
import runpy
import socket
import sys
from contextlib import suppress
from io import FileIO, TextIOWrapper
from os import fork, waitpid  # as they are before gevent's, which would make a hub
from time import sleep
from typing import Any

_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
_PATCHED = ("framework.cli.ending", "framework.cli.signals", "framework.cli.run", "framework.transports.nsq.transport")
_PLAIN = (
    "framework.cli.ending", "framework.cli.signals", "framework.cli.check", "framework.cli.publish", "framework.cli.stats",
    "framework.cli.dead", "framework.nsqd.server", "framework.nsqlookupd.server", "framework.transports.nsq.transport",
)  # fmt: skip


def main(number: int, kind: str) -> None:
    """Wait for what is to be started; returns in each of the children, and ends with the test."""
    asked = socket.socket(fileno=number)
    _import(kind)
    while True:
        words, ancillary, _, _ = asked.recvmsg(1 << 20, socket.CMSG_SPACE(3 * 4))
        if not words:
            os._exit(0)
        fds = array.array("i")
        fds.frombytes(b"".join(data for _, _, data in ancillary))
        between = fork()
        if not between:
            child = fork()
            if child:
                asked.send(b"%d" % child)
                os._exit(0)
            what: dict[str, Any] = eval(words)  # our own repr; json would be one more module than the command has
            _become(what, list(fds))
            return
        waitpid(between, 0)  # now the child is the test's
        asked.send(b".")
        for fd in fds:
            os.close(fd)


def _import(kind: str) -> None:
    importlib.import_module("workers_command")
    if kind == "patched":
        patching = importlib.import_module("framework.cli.patching")
        patch = patching.patch
        patch()

        def once() -> None:
            patching.patch = patch

        patching.patch = once
    for name in _PATCHED if kind == "patched" else _PLAIN:
        importlib.import_module(name)
    hub = sys.modules["gevent._hub_local"].get_hub_if_exists()
    if hub is not None or len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("an import made a hub or a thread: no process that is forked from here would have it")
    gc.collect()
    gc.freeze()


def _become(what: dict[str, Any], fds: list[int]) -> None:
    for _ in range(100_000):
        if os.getppid() == what["parent"]:
            break
        sleep(0.0002)
    else:  # the test's process has ended
        os._exit(1)
    for fd, place in zip(fds, range(3), strict=True):  # they are above 2: those are taken
        os.dup2(fd, place, inheritable=True)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2:
            with suppress(OSError):  # what listed them is closed by now
                os.close(fd)
    if what["session"]:
        os.setsid()
    if what["group"] >= 0:
        os.setpgid(0, what["group"])
    for limit, asked in zip(_LIMITS, what["limits"], strict=True):
        if resource.getrlimit(limit) != asked:
            resource.setrlimit(limit, asked)
    os.umask(what["umask"])
    os.chdir(what["cwd"])
    os.environ.clear()
    os.environ.update(what["env"])
    sys.path[0] = os.getcwd() if what["argv"][1] == "-m" else ""
    sys.argv[:] = what["argv"][2:]
    sys.orig_argv[:] = what["argv"]
    sys.stdin = sys.__stdin__ = _text(0, "r", sys.stdin)
    sys.stdout = sys.__stdout__ = _text(1, "w", sys.stdout)
    sys.stderr = sys.__stderr__ = _text(2, "w", sys.stderr)


def _text(fd: int, mode: str, like: TextIOWrapper) -> TextIOWrapper:
    """As Python itself makes them (create_stdio in pylifecycle.c)."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    buffer: Any = open(fd, mode + "b", 0 if unbuffered and mode == "w" else -1, closefd=False)  # noqa: SIM115
    raw: FileIO = getattr(buffer, "raw", buffer)
    raw.name = {0: "<stdin>", 1: "<stdout>", 2: "<stderr>"}[fd]
    lines = not unbuffered and (raw.isatty() or fd == 2)
    text = TextIOWrapper(buffer, like.encoding, like.errors, "\n", lines, unbuffered)
    text.mode = mode  # type: ignore[misc]
    return text


def _begin(names: dict[str, Any]) -> None:
    """Run what is asked for in the module ``__main__``, in which nothing of this is left then."""
    what, how = sys.argv[0], sys.orig_argv[1]
    run, code = runpy._run_module_as_main, how == "-c" and compile(what, "<string>", "exec")
    sys.argv[0] = how  # which runpy knows better
    usual = {"__name__": "__main__", "__doc__": None, "__package__": None, "__spec__": None, "__builtins__": builtins}
    names.clear()
    names.update(usual, __annotations__={})
    exec(code, names) if code else run(what)


main(int(sys.argv[1]), sys.argv[2])
_begin(globals())
