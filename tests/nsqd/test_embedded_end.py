"""The end of an nsqd that a process has started: it is asked, and killed where it does not hear."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
