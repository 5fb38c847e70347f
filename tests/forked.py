"""Starts the processes of tests by a fork of a Python that has imported everything, where a start is not what is tested.

``workers run …``, and our nsqd and nsqlookupd, need 0.3 to 0.4 s of CPU until they have imported what they consist of, and the
suite starts more than a thousand of them. ``install`` has ``subprocess`` fork such a process from a template (``tests/scripts/
fork_template.py``), which was started in the same way, and has no thread, no hub and nothing of the test: then it runs the
module as ``python -m`` does. It is a child of the test as any other. What a template could not do as a real start does is
started for real: other programs, other settings of Python, descriptors passed on, signals that are ignored. So is what is
started by the framework itself, and by tests marked ``real_start``; and what a template was asked for that has ended, which is
told as a warning: the next start has a new template, but for one that ends again and again.
"""

from __future__ import annotations

import array
import ctypes
import inspect
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent

from framework.testing.servers import ROOT
from framework.testing.worker_process import START

_MODULES = {"framework.cli", "framework.nsqd", "framework.nsqlookupd"}
_SCRIPT = ROOT / "tests" / "scripts" / "fork_template.py"
_AT_START = ("PYTHON", "GEVENT", "GREENLET", "LD_", "LC_", "LANG", "MALLOC", "TZ", "OPENSSL", "SSL", "OTEL", "COVERAGE", "HOME")
"""How variables begin that Python, or a module when it is imported, reads once."""
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
_PR_SET_CHILD_SUBREAPER = 36
_real = subprocess.Popen
_lock = threading.Lock()
_templates: dict[str, _Template] = {}
_ended: Counter[str] = Counter()
_ENDS = 3
"""So often a template may end: then what it would start is started for real."""
_kept_real: list[bool] = []


def install() -> None:
    """From now on ``subprocess`` starts so what can be started so. Where the system is not Linux, nothing changes."""
    if sys.platform == "linux" and not os.environ.get("REAL_STARTS"):
        subprocess.Popen = Forked  # type: ignore[misc]


@contextmanager
def real_starts() -> Iterator[None]:
    """Every process that is started in the block is started for real."""
    _kept_real.append(True)
    try:
        yield
    finally:
        _kept_real.pop()


class _Template:
    """A process that forks itself, and how it was started."""

    def __init__(self, kind: str) -> None:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (mine, its):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with its, open(os.devnull, "r+b") as nothing:
            self._process = _real(
                [sys.executable, "-c", _SCRIPT.read_text(), str(its.fileno()), kind], pass_fds=[its.fileno()],
                env={name: value for name, value in os.environ.items() if not name.startswith(_AT_START)} | _usual,
                stdin=nothing, stdout=nothing,
            )  # fmt: skip
        self._socket = mine
        self.pid = self._process.pid

    def fork(self, what: dict[str, Any], fds: list[int]) -> int:
        """The process id of a child of this process, which begins as ``what`` says."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        said: list[bytes] = []
        _adopt(True)
        try:
            self._socket.sendmsg([repr(what).encode()], ancillary)
            while len(said) < 2 and (one := self._socket.recv(100)):
                said.append(one)
        except ConnectionError:
            pass
        finally:
            _adopt(False)
        child = next((int(one) for one in said if one != b"."), None)
        if child is None:
            raise _HasEnded
        return child

    def ended(self) -> int:
        """Its exit status. It is not used again."""
        self._socket.close()
        self._process.kill()
        return self._process.wait()


class _HasEnded(Exception):
    """The template has, and has started nothing."""


def _adopt(orphans: bool) -> None:
    """Whether children of children whose parents end become this process's own (prctl(2)), rather than those of PID 1."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


_libc = ctypes.CDLL(None, use_errno=True)


class Forked(_real):  # type: ignore[type-arg,valid-type,misc]
    """``subprocess.Popen``, whose process may have been forked from a template."""

    def _execute_child(self, *all_of_it: Any) -> None:
        how = dict(zip(_ARGUMENTS, all_of_it, strict=True))
        environ = os.environ if how["env"] is None else how["env"]
        words = how["args"]
        if not (_is_known(words) and _is_usual(how) and _starts_alike(environ)):
            super()._execute_child(*all_of_it)
            return
        sys.audit("subprocess.Popen", words[0], words, how["cwd"], how["env"])
        where = os.path.join(os.getcwd(), how["cwd"] or "")
        os.stat(where)  # raises as a real start would
        what = {
            "argv": [os.fspath(one) for one in words], "cwd": where, "env": dict(environ), "umask": _umask(),
            "session": how["start_new_session"], "group": how["process_group"], "parent": os.getpid(),
            "limits": [resource.getrlimit(one) for one in _LIMITS],
        }  # fmt: skip
        texts = (how["p2cread"], how["c2pwrite"], how["errwrite"])
        kind = "patched" if words[2:4] == ["framework.cli", "run"] or words[2] == START else "plain"
        try:
            with _lock:
                self.pid = _fork(kind, what, [given if given >= 0 else own for own, given in enumerate(texts)])
        except _HasEnded:
            super()._execute_child(*all_of_it)
            return
        self._child_created = True
        self._close_pipe_fds(*(how[name] for name in _PIPES))


_ARGUMENTS = list(inspect.signature(_real._execute_child).parameters)[1:]  # type: ignore[attr-defined]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_USUAL = {
    "executable": None, "preexec_fn": None, "close_fds": True, "pass_fds": (), "shell": False, "restore_signals": True,
    "gid": None, "gids": None, "uid": None, "umask": -1,
}  # fmt: skip


def _is_known(words: Any) -> bool:
    if not isinstance(words, list) or len(words) < 3 or words[0] != sys.executable:
        return False
    return (words[1] == "-m" and words[2] in _MODULES) or words[1:3] == ["-c", START]


def _is_usual(how: dict[str, Any]) -> bool:
    return not _kept_real and all(how[name] == usual for name, usual in _USUAL.items())


def _settings(environ: Any) -> dict[str, str]:
    """What is read once, but for what is put into place in each child."""
    return {name: value for name, value in environ.items() if name.startswith(_AT_START) and name != "PYTHONUNBUFFERED"}


def _starts_alike(environ: Any) -> bool:
    """Whether the environment is for a template what that of this process is, and nothing is ignored or blocked."""
    return os.getpid() == _here and _settings(environ) == _usual and not _odd_signals()


def _odd_signals() -> list[str]:
    """What is ignored or blocked here, and would be in what is started from here."""
    ignored = {one for one in _SIGNALS if signal.getsignal(one) == signal.SIG_IGN}
    return sorted(signal.Signals(one).name for one in ignored | signal.pthread_sigmask(signal.SIG_BLOCK, []))


def reap_by_name() -> None:
    """Once a hub has watched one child it takes the end of every child, and ``subprocess`` is told 0 for what it started itself.
    From now on each takes its own again, until a hub watches the next."""
    gevent.get_hub().loop.reset_sigchld()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def left_behind() -> list[str]:
    """What was changed, since it was asked last, for all that is started from here: with any of it that is started for real.
    Handlers of signals are put back."""
    now = _settings(os.environ)
    changed = [name for name in now.keys() | _usual.keys() if now.get(name) != _usual.get(name)]
    left = {*changed, *_odd_signals()} - _told
    for one, usual in _handlers.items():
        signal.signal(one, usual)
    _told.update(left)
    return sorted(left)


_told: set[str] = set()
_handlers: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Those of a process that nobody has prepared: what an interrupt ends depends on them. PySpark leaves one of its own."""
_usual = _settings(os.environ)
_here = os.getpid()


def _fork(kind: str, what: dict[str, Any], fds: list[int]) -> int:
    if _ended[kind] == _ENDS:
        raise _HasEnded
    if kind not in _templates:
        _templates[kind] = _Template(kind)
    try:
        return _templates[kind].fork(what, fds)
    except _HasEnded:
        _ended[kind] += 1
        status = _templates.pop(kind).ended()
        warnings.warn(f"a process that forks those of the tests ({kind}) has ended with {status}", stacklevel=2)
        raise


def templates() -> list[int]:
    """The process ids of the templates: they are children of the tests that no test has started."""
    return [one.pid for one in _templates.values()]


def _umask() -> int:
    """Of this process, without the moment in which asking by os.umask would change it."""
    return next(int(line.split()[1], 8) for line in open("/proc/self/status") if line.startswith("Umask:"))
