"""A signal in the first moments of `workers`, when most of it is not imported yet, and in the last: a clean end, and a sentence.

The moments are imports, not times: the process signals itself when a module is looked for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from framework.testing.servers import ROOT

pytestmark = pytest.mark.real_start

SIGNALS_ITSELF = """
import os, sys

class Moment:
    def find_spec(self, name, path=None, target=None):
        if name == {moment!r} and "WORKERS_MASTER_FD" not in os.environ:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Moment())
sys.argv = ["workers", *{arguments!r}]
{begin}
"""
SCRIPT = "import workers_command; workers_command.main()"
MODULE = "import runpy; runpy.run_module('framework.cli', run_name='__main__')"
RUN = ["run", "shop", "--broker", "nsq://127.0.0.1:1"]
NSQD = ["nsqd", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]


def ended(folder: Path, moment: str, number: int, arguments: list[str], begin: str = SCRIPT) -> tuple[int, str]:
    """How it ended, and what it said on stderr."""
    (folder / "shop.py").write_text("import a_module_of_the_app")
    code = SIGNALS_ITSELF.format(moment=moment, number=int(number), arguments=arguments, begin=begin)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stderr


def said(number: int) -> str:
    return f"workers: {signal.Signals(number).name} came before anything was started\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(
    ("moment", "arguments"),
    [
        ("framework", RUN),
        ("gevent", RUN),
        ("framework.settings", RUN),
        ("a_module_of_the_app", RUN),
        ("framework", NSQD),
        ("framework.nsqd.server", NSQD),
        ("framework.nsqlookupd.server", ["nsqlookupd"]),
    ],
)
def test_what_is_told_to_stop_before_it_began_has_stopped_cleanly(
    tmp_path: Path, moment: str, arguments: list[str], number: int
) -> None:
    assert ended(tmp_path, moment, number, arguments) == (0, said(number))


@pytest.mark.parametrize(
    ("moment", "arguments"),
    [
        ("framework", ["publish", "orders"]),
        ("framework.cli.publish", ["publish", "orders"]),
        ("framework.nsqd.server", ["nsqd", "--backup=copy"]),
        ("gevent", ["stats"]),
        ("framework", []),
    ],
)
def test_what_has_work_to_end_is_not_taken_to_have_ended_it(tmp_path: Path, moment: str, arguments: list[str]) -> None:
    assert ended(tmp_path, moment, signal.SIGTERM, arguments) == (143, said(signal.SIGTERM))


def test_a_verb_that_looks_after_no_signal_has_them_as_the_system_does(tmp_path: Path) -> None:
    assert ended(tmp_path, "framework.cli.stats", signal.SIGTERM, ["stats"]) == (-signal.SIGTERM, "")


def test_a_sighup_that_nohup_ignores_is_ignored_from_the_first_moment(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        code, err = ended(tmp_path, "framework", signal.SIGHUP, ["--version"])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (code, err) == (0, "")


def test_the_script_that_is_installed_begins_there() -> None:
    script = Path(sys.executable).with_name("workers")
    assert "from workers_command import main" in script.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_python_m_begins_there_once_the_package_is_imported(tmp_path: Path, number: int) -> None:
    assert ended(tmp_path, "framework.cli.root", number, RUN, MODULE) == (0, said(number))


def test_a_signal_after_the_end_of_a_worker_does_what_it_does_elsewhere() -> None:
    """The first moments are over: it would be told that nothing had been started."""
    code = (
        "import signal, workers_command as w\n"
        "early = w.Early(signal.SIGTERM, 0)\n"
        "from framework.cli.signals import interrupting\n"
        "with interrupting(): assert signal.getsignal(signal.SIGTERM) is not early\n"
        "assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN])
def test_what_is_asked_of_a_master_that_starts_does_not_end_it(tmp_path: Path, number: signal.Signals) -> None:
    """An exit with 0 would be taken for what somebody wanted."""
    arguments = [*RUN, "--processes", "1", "--connect-deadline", "0.1"]
    (tmp_path / "app.py").write_text("from framework import handler\n@handler('orders', 'say')\ndef say(text: str): ...\n")
    arguments[1] = "app"
    code, words = ended(tmp_path, "framework.master.master", number, arguments)
    assert (code, "127.0.0.1:1" in words) == (3, True), words


def test_sigusr1_does_not_end_a_worker_that_starts(tmp_path: Path) -> None:
    """Its log has no lines yet that a file would have to be opened again for."""
    (tmp_path / "app.py").write_text("from framework import handler\n@handler('orders', 'say')\ndef say(text: str): ...\n")
    arguments = [RUN[0], "app", *RUN[2:], "--connect-deadline", "0.1"]
    code, words = ended(tmp_path, "framework.cli.root", signal.SIGUSR1, arguments)
    assert (code, "127.0.0.1:1" in words) == (3, True), words


def test_no_file_of_the_app_gets_what_is_logged_where_stderr_is_closed(tmp_path: Path) -> None:
    """The first that is opened then would be number 2."""
    (tmp_path / "shop.py").write_text("mine = open('mine', 'w')\nmine.write(str(mine.fileno()))\nmine.flush()\n")
    command = [sys.executable, "-m", "framework.cli", *RUN]
    closing = ["/bin/sh", "-c", 'exec "$@" <&- 2>&-', "sh", *command]
    done = subprocess.run(
        closing, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, b"")  # it has no handlers
    assert int((tmp_path / "mine").read_text()) > 2


def test_before_any_line_of_workers_has_run_a_signal_ends_python_as_the_page_says(tmp_path: Path) -> None:
    page = " ".join((ROOT / "docs" / "exit-codes.md").read_text().split())
    assert "A supervisor is told the signal then and no code (-15 in Python's `subprocess`)" in page
    (tmp_path / "sitecustomize.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    done = subprocess.run(
        [sys.executable, "-m", "framework.cli", *RUN], env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", "")


LAST = """
import io, os, sys
import workers_command

class Last(io.BufferedIOBase):
    def write(self, data):
        return len(data)
    def writable(self):
        return True
    def close(self):
        os.kill(os.getpid(), {number})

last = Last()
sys.argv = ["workers", "--version"]
workers_command.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_that_comes_when_all_is_done_changes_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """The second of somebody who is impatient, while files are flushed."""
    done = subprocess.run(
        [sys.executable, "-c", LAST.format(number=int(number))], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


IN_A_GREENLET = """
import os, sys
import gevent
import workers_command
from framework.transports.nsq.transport import NsqTransport

def signals_itself(*_):
    os.kill(os.getpid(), 2)
    gevent.sleep(10)

NsqTransport._probe = signals_itself
sys.argv = ["workers", *{arguments!r}, "--broker", "nsq://127.0.0.1:1"]
workers_command.main()
"""


@pytest.mark.parametrize("verb", [["stats"], ["dead", "list"], ["dead", "replay", "orders/billing"], ["pause", "orders/billing"]])
def test_a_verb_that_waits_for_nodes_ends_at_ctrl_c_without_a_traceback(verb: list[str], tmp_path: Path) -> None:
    """It asks them in greenlets, and Python calls what handles a signal in whatever runs."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_GREENLET.format(arguments=verb)], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip()) == (130, "")
