"""The end of a process that may have native threads: as the interpreter ends it, but for taking itself down.

While CPython up to 3.13 takes itself down, each native thread that wants the GIL is ended by ``pthread_exit``. That unwinds the
thread's C stack, and greenlets have put pieces of that elsewhere: of 30 processes with such threads nine ended by SIGSEGV or
SIGABRT, when all that they had to do was done.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

_UNWRITTEN = 120
"""The exit code of Python when stdout or stderr took not all of it."""


def end_process(code: int) -> NoReturn:
    """Wait for the threads that Python waits for, call the exit functions, write what nobody has flushed, and end."""
    if sys.getprofile() or sys.gettrace():
        sys.exit(code)  # a profiler or debugger has still to say what it saw: it called the main module
    _join_threads()
    atexit._run_exitfuncs()  # what one of them raises is printed, and the next one called
    _flush_files()
    os._exit(code if _is_written() else code or _UNWRITTEN)


def _join_threads() -> None:
    """Those that are no daemons, and those of executors."""
    if "threading" in sys.modules:
        try:
            sys.modules["threading"]._shutdown()
        except BaseException:  # an interrupt: go on, as Python does
            sys.excepthook(*sys.exc_info())


def _flush_files() -> None:
    """Those that the app has left open. What buffers in Python, as gzip's do, writes its last bytes when it is closed."""
    found = [one for one in gc.get_objects() if issubclass(type(one), io.IOBase)]  # no isinstance(): proxies run code at that
    _call("flush", (one for one in found if isinstance(one, io.TextIOWrapper)))
    _call("close", (one for one in found if isinstance(one, io.BufferedIOBase) and type(one).__module__ != "_io"))
    _call("flush", (one for one in found if isinstance(one, io.BufferedIOBase) and type(one).__module__ == "_io"))


def _call(method: str, files: Iterable[io.IOBase]) -> None:
    for one in files:
        with suppress(Exception):  # closed, detached, a full disk: the interpreter passes over it as well
            if _is_for_writing(one):
                getattr(one, method)()


def _is_for_writing(file: io.IOBase) -> bool:
    """What is for reading has nothing to flush, and a thread that waits for its bytes holds its lock: to flush or close it
    would wait for ever. So `workers publish` never ended after an nsqlookupd had not answered in time."""
    kind = type(file)
    if kind.writable is io.IOBase.writable and issubclass(kind, io.BufferedIOBase):  # as http.client.HTTPResponse; it says no
        return kind.write is not io.BufferedIOBase.write
    return file.writable()


def _is_written() -> bool:
    """Whether stdout and stderr have all that was written to them."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except Exception:
        return False
    return True
