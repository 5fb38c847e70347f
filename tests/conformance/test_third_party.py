"""The suite in the hands of someone else: a file of their own, in a folder of their own, with pytest's strictest options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    pass
"""


def test_a_file_of_twenty_lines_runs_the_suite(tmp_path: Path) -> None:
    (tmp_path / "test_thing.py").write_text(THEIRS)
    options = ["-q", "--strict-markers", "-p", "no:cacheprovider", "-k", "handled_once or slow_network or idle_worker"]
    command = [sys.executable, "-m", "pytest", *options, "test_thing.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 1 skipped" in done.stdout


def test_what_fails_shows_the_values_that_were_compared(tmp_path: Path) -> None:
    broken = THEIRS.replace("    pass\n", "    def test_it(self, bench): bench.until(lambda: False, seconds=0.01)\n")
    (tmp_path / "test_thing.py").write_text(broken)
    options = ["-q", "-p", "no:cacheprovider", "-k", "test_it"]
    command = [sys.executable, "-m", "pytest", *options, "test_thing.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "not within 0.01 s" in done.stdout
    assert "where" in done.stdout  # pytest's own rewriting reaches the suite's asserts
