"""The end of an nsqd that a process has started: it is asked, and killed where it does not hear."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from framework.errors import BrokerUnreachable
from framework.nsqd import embedded
from tests.nsqd.speaking import eventually

_DEAF = "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {}; time.sleep(60)"


@pytest.mark.parametrize(("deaf", "code"), [(True, -signal.SIGKILL), (False, -signal.SIGTERM)])
def test_one_that_does_not_end_when_it_is_asked_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool, code: int
) -> None:
    monkeypatch.setattr(embedded, "_STOP_SECONDS", 0.05 if deaf else 30.0)
    ready = tmp_path / "ready"
    script = _DEAF.format("pathlib.Path(sys.argv[1]).touch()")
    if not deaf:
        script = script.replace("signal.SIG_IGN", "signal.SIG_DFL")
    with subprocess.Popen([sys.executable, "-c", script, str(ready)]) as process:
        try:
            assert eventually(ready.exists)
            embedded._end(process)
            assert process.returncode == code
        finally:
            process.kill()


def test_one_that_does_not_start_in_time_is_killed_and_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*command: Any, **how: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*command, **how))
        return started[-1]

    monkeypatch.setattr(embedded, "_START_SECONDS", 0.0)
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(BrokerUnreachable, match=f"the embedded nsqd on {tmp_path} did not start"):
        embedded.ensure(tmp_path, tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    assert [process.returncode for process in started] == [-signal.SIGKILL]
