"""What has ended has ended, whether anybody collected it or not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from framework.testing import processes
from framework.testing.processes import has_ended, left_after

SLEEPING = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_process_that_nobody_has_collected_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()  # it goes, and stays as a zombie until ``wait``
        assert left_after([process.pid], 5) == []
        assert Path(f"/proc/{process.pid}").exists()
    assert has_ended(process.pid)


def test_what_still_runs_is_named_when_the_time_is_over() -> None:
    with subprocess.Popen(SLEEPING) as running, subprocess.Popen([sys.executable, "-c", ""]) as ended:
        began = time.monotonic()
        assert left_after([running.pid, ended.pid], 1.0) == [running.pid]
        assert time.monotonic() - began >= 1.0
        running.kill()
        assert left_after([running.pid], 5) == []


def test_where_there_is_no_proc_a_process_runs_as_long_as_it_can_be_signalled(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path / "none")
    with subprocess.Popen(SLEEPING) as running:
        assert not has_ended(running.pid)
        running.kill()
        running.wait()
    assert has_ended(running.pid)
