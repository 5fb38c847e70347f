"""Tests that must stay together in one process do: those of a file, and those that share the Spark session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import os, pathlib, pytest

@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("n", range(8))
def test_it(n):
    with pathlib.Path("ran").open("a") as ran:
        print(os.environ["PYTEST_XDIST_WORKER"], file=ran)
"""


def test_the_installed_pytest_and_xdist_keep_a_group_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", f"--rootdir={tmp_path}", "-c", os.devnull]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ran = (tmp_path / "ran").read_text().split()
    assert (len(ran), len(set(ran))) == (8, 1)
