"""What the tests need beside Debian's packages is there before the first of them, in the order of ``tools/test``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

import pytest

from framework.testing.servers import ROOT, ServerMissing
from tests import fetched


def test_what_cannot_be_had_is_said_and_the_others_are_made(capsys):
    made = []

    def missing():
        raise ServerMissing("there is no `go` on the PATH")

    fetched.fetch([missing, lambda: made.append("jars")])
    assert made == ["jars"]
    assert "setup: there is no `go` on the PATH" in capsys.readouterr().err


def test_no_fast_test_begins_before_its_server_is_there():
    """Beside seven others, with nothing compiled yet, an S3 gateway took longer than a test may."""
    steps = (ROOT / "tools" / "test").read_text()
    order = ("tests.fetched fast &", 'wait "$building"', 'tests.fetched slow "$FETCHING" &', 'begin "fast tests"')
    places = [steps.index(step) for step in order]
    assert places == sorted(places)


WAITING = """
import time
import pytest

def test_fast():
    open("fast", "w").close()

@pytest.mark.slow
@pytest.mark.timeout(1)
def test_slow():
    open("slow", "w").close()
"""


def test_no_slow_test_begins_before_its_server_is_there(tmp_path):
    """Nor does the time that it may take."""
    (tmp_path / "tests/room").mkdir(parents=True)
    (tmp_path / "tests/room/test_it.py").write_text(WAITING)
    awaited = tmp_path / "awaited"
    awaited.touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", f"--rootdir={tmp_path}", "-c", os.devnull, "tests"],
        cwd=tmp_path, env=environment | {"FETCHING": str(awaited), "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while not (tmp_path / "fast").exists():
            assert running.poll() is None
            time.sleep(0.02)
        time.sleep(1.5)
        assert not (tmp_path / "slow").exists()
    finally:
        awaited.unlink()
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, said


@pytest.mark.parametrize("ends", [lambda: None, lambda: 1 / 0], ids=["well", "by an error"])
def test_who_fetches_says_so_at_its_end(ends, tmp_path, monkeypatch):
    awaited = tmp_path / "awaited"
    awaited.touch()
    monkeypatch.setattr(fetched, "SLOW", [ends])
    with suppress(ZeroDivisionError):
        fetched.main("slow", str(awaited))
    assert not awaited.exists()


@pytest.mark.parametrize(
    ("said", "expected"),
    [({}, ["slow"]), ({"LONG_RUNS": "1"}, ["slow", "long"]), ({"AT_LENGTH": "1"}, ["slow", "long", "at length"])],
)
def test_what_only_longer_runs_need_is_not_fetched_for_others(said, expected, monkeypatch):
    made: list[str] = []
    for name, kind in (("SLOW", "slow"), ("LONG", "long"), ("AT_LENGTH", "at length")):
        monkeypatch.setattr(fetched, name, [partial(made.append, kind)])
    for name in ("LONG_RUNS", "AT_LENGTH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    fetched.main("slow")
    assert made == expected
