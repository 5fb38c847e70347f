"""A clock for servers under test that steps, by a preloaded library: what happens between two steps happens at one time."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

from framework.testing.servers import Server, ServerMissing

_SOURCE = Path(__file__).with_name("clock.c")


def stepping(server: Server, folder: Path, step: float) -> None:
    """The server, not started yet, sees the time of day move on once in ``step`` seconds. The library is built into ``folder``.

    Raises ServerMissing where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None or "linux" not in sysconfig.get_platform():
        raise ServerMissing("a clock that steps is built by `cc`, and there is none on the PATH")
    built = folder / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, _SOURCE, "-ldl"], check=True)
    server.command[:0] = ["env", f"LD_PRELOAD={built}", f"CLOCK_STEP_MS={round(step * 1000)}"]
