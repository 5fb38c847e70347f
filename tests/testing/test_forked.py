"""A process that was forked from a template is what a real start would have made of it (``tests/forked.py``)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gevent
import psutil
import pytest

from framework.testing import workers
from framework.testing.processes import has_ended
from tests import forked

PROBE = """
import gc, json, os, resource, signal, sys, threading
TEXT = ["name", "mode", "encoding", "errors", "line_buffering", "write_through", "buffer"]
TEXTS = [sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__]
said = {
    "argv": sys.argv[1:], "orig_argv": sys.orig_argv, "flags": list(sys.flags), "path": sys.path, "cwd": os.getcwd(),
    "environ": dict(os.environ), "parent": os.getppid(), "threads": len(os.listdir("/proc/self/task")),
    "group": os.getpgid(0) == os.getpid(), "session": os.getsid(0) == os.getpid(), "umask": os.umask(0o22),
    "limits": [resource.getrlimit(one) for one in range(16)],
    "signals": {str(number): repr(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()},
    "mask": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "enabled": gc.isenabled(),
    "thread": [threading.current_thread().name, threading.current_thread() is threading.main_thread()],
    "main": sorted(vars(sys.modules["__main__"])), "name": sys.modules["__main__"].__name__,
    "texts": [[type(one).__name__, *(repr(getattr(one, name, None)).split(" at ")[0] for name in TEXT)] for one in TEXTS],
    "files": sorted(fd for fd in os.listdir("/proc/self/fd") if int(fd) < 3),
    "input": sys.stdin.read(),
}
print(json.dumps(said))
print("a word", file=sys.stderr)
"""
END = {
    "exits": "sys.exit(7)", "at once": "os._exit(9)", "killed": "os.kill(os.getpid(), 9)",
    "segfault": "signal.signal(11, signal.SIG_DFL); os.kill(os.getpid(), 11)", "raises": "raise ArithmeticError('a cause')",
}  # fmt: skip


def started(folder: Path, verb: str, how: str, **options: Any) -> tuple[dict[str, Any], list[str], int]:
    (folder / "probe.py").write_text(PROBE + END[how])
    done = subprocess.run(
        workers.command(verb, "probe"), cwd=folder, env=workers.environment({"OF_THE_TEST": "yes"}), input=b"said to it",
        capture_output=True, timeout=60, check=False, **options,
    )  # fmt: skip
    assert done.stdout, done.stderr.decode()
    said = json.loads(done.stdout.splitlines()[0])
    assert said["parent"] == os.getpid()
    return said, done.stderr.decode().splitlines(), done.returncode


@pytest.mark.parametrize("options", [{}, {"start_new_session": True}, {"process_group": 0}], ids=["plain", "session", "group"])
@pytest.mark.parametrize("verb", ["run", "docs"])
def test_it_finds_what_a_real_start_finds(verb: str, options: dict[str, Any], tmp_path: Path) -> None:
    found, *_ = started(tmp_path, verb, "exits", **options)
    with forked.real_starts():
        wanted, *_ = started(tmp_path, verb, "exits", **options)
    assert [(name, found[name], wanted[name]) for name in wanted if found[name] != wanted[name]] == []


@pytest.mark.parametrize("how", END)
@pytest.mark.parametrize("verb", ["run", "docs"])
def test_it_ends_as_a_real_start_ends(verb: str, how: str, tmp_path: Path) -> None:
    forks = started(tmp_path, verb, how)[1:]
    with forked.real_starts():
        assert forks == started(tmp_path, verb, how)[1:]


def test_nothing_is_open_that_a_real_start_would_not_have_open(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "framework.nsqd", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]

    def opened(name: str) -> list[str]:
        with subprocess.Popen([*command, f"--data-path={tmp_path}"], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            while "HTTP: listening" not in process.stderr.readline():
                assert process.poll() is None
            time.sleep(0.1)
            files = Path(f"/proc/{process.pid}/fd")
            links = [os.readlink(file).partition(":[")[0] for file in files.iterdir()]
            found = sorted(link.replace(f"/proc/{process.pid}/", "/proc/PID/") for link in links)
            process.terminate()
            process.communicate()
        return found

    forks = opened("forked")
    with forked.real_starts():
        assert forks == opened("real")


def test_what_a_template_could_not_do_is_started_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forks: list[int] = []
    fork = forked._Template.fork
    monkeypatch.setattr(forked._Template, "fork", lambda *rest: forks.append(fork(*rest)) or forks[-1])

    def is_real(**options: Any) -> bool:
        forks.clear()
        options = {"env": os.environ, "cwd": tmp_path} | options
        subprocess.run([sys.executable, "-m", "framework.nsqd", "--version"], stdout=subprocess.DEVNULL, check=True, **options)
        return not forks

    assert not is_real()
    for variable in ("PYTHONPATH", "LD_PRELOAD_OF_MINE", "GEVENT_RESOLVER", "TZ", "OTEL_SEMCONV_STABILITY_OPT_IN"):
        assert is_real(env=os.environ | {variable: "x"})
    for options in ({"umask": 0o77}, {"pass_fds": [0]}, {"preexec_fn": lambda: None}, {"restore_signals": False}):
        assert is_real(**options)
    with forked.real_starts():
        assert is_real()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert is_real()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_a_template_was_asked_for_that_has_ended_is_started_for_real_and_told(tmp_path: Path) -> None:
    workers.call("--version", cwd=tmp_path)
    for template in forked.templates():
        os.kill(template, signal.SIGKILL)
    with pytest.warns(UserWarning, match="has ended with -9"):
        assert workers.call("--version", cwd=tmp_path).returncode == 0
    forked._ended.clear()
    assert workers.call("--version", cwd=tmp_path).returncode == 0
    assert forked.templates()


def test_a_folder_that_is_not_there_is_said_as_ever(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        subprocess.Popen(workers.command("--version"), cwd=tmp_path / "nowhere")


def test_what_is_not_the_tests_is_not_adopted(tmp_path: Path) -> None:
    """Only while one is forked does the test take in what others leave behind."""
    workers.call("--version", cwd=tmp_path)
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=-3, stderr=-3).pid)"
    left = int(subprocess.run([sys.executable, "-c", leaves], capture_output=True, text=True, check=True).stdout)
    try:
        assert psutil.Process(left).ppid() != os.getpid()
    finally:
        os.kill(left, signal.SIGKILL)


def test_templates_end_with_the_process_that_made_them(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import subprocess; from tests import forked; forked.install()\n"
        "subprocess.run([sys.executable, '-m', 'framework.nsqd', '--version'], stdout=subprocess.DEVNULL)\n"
        "print(*forked.templates())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(forked.ROOT)], capture_output=True, text=True, check=True, timeout=60
    )
    (template,) = map(int, done.stdout.split())
    until = time.monotonic() + 10
    while not has_ended(template):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_how_a_process_ended_is_known_though_a_hub_has_watched_another() -> None:
    """Of a worker that had died of exit status 9 a test was told 0, where a test of slot processes had come before it."""
    loop = gevent.get_hub().loop
    loop.install_sigchld()
    forked.reap_by_name()
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(9)"])
    deadline = time.monotonic() + 60.0
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        gevent.sleep(0.01)
    gevent.sleep(0.05)
    assert process.wait() == 9
    loop.install_sigchld()
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(9)"])
    seen: list[int] = []
    watcher = loop.child(process.pid, ref=False)
    watcher.start(lambda: seen.append(os.waitstatus_to_exitcode(watcher.rstatus)))
    while not seen:
        assert time.monotonic() < deadline
        gevent.sleep(0.01)
    assert seen == [9]
    process.wait()
