"""The suite in the hands of someone else: a file of their own, in a folder of their own, with pytest's strictest options."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
THEIRS = """
import pytest
from framework.testing.conformance import Node, Subject, Suite
from framework.transports import memory

class ThingNode(Node):
    def __init__(self, number):
        self.broker = memory.named(f"thing-{number}")
        self.url = self.broker.url
    def up(self): self.broker.start()
    def down(self): self.broker.stop()

class Thing(Subject):
    reachable = False
    made = 0
    def make(self, *, brief):
        self.made += 1
        return ThingNode(self.made)

@pytest.fixture(scope="module")
def subject():
    with Thing() as subject:
        yield subject

class TestThing(Suite):
    def test_theirs(self, bench): bench.until(lambda: False, seconds=0.01)
"""


def test_a_file_of_twenty_lines_runs_the_suite_and_what_fails_shows_the_values_that_were_compared(tmp_path: Path) -> None:
    (tmp_path / "test_thing.py").write_text(THEIRS)
    options = ["-q", "--strict-markers", "-p", "no:cacheprovider", "-k", "handled_once or slow_network or idle_worker or theirs"]
    command = [sys.executable, "-m", "pytest", *options, "test_thing.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 2 passed, 1 skipped" in done.stdout
    assert "not within 0.01 s" in done.stdout
    assert "where" in done.stdout  # pytest's own rewriting reaches the suite's asserts


def test_the_file_of_the_documentation_runs_as_it_stands_there(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(# test_directory\.py\n.*?)```", (ROOT / "docs" / "transports.md").read_text(), re.DOTALL)
    (tmp_path / "test_directory.py").write_text(code)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "handled_once or parts_that",
        "test_directory.py",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "examples" / "directory_broker")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
