"""A file of the log is opened beside the hub: a disk that does not answer holds nobody up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from framework.errors import BadSetting
from framework.observe import logfile


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that opens no file until it is let go."""
    go, plain = threading.Event(), logfile._open

    def open_it(path: Path) -> int:
        assert go.wait(30)
        return plain(path)

    monkeypatch.setattr(logfile, "_open", open_it)
    yield go
    go.set()
    assert logfile._opener.flush(20)


@pytest.fixture(autouse=True)
def stderr_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept = os.dup(2)
    monkeypatch.setattr(logfile, "_file", [])
    yield
    os.dup2(kept, 2)
    os.close(kept)


def test_while_a_disk_does_not_answer_others_go_on_and_the_setting_is_refused(
    stuck: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logfile, "_PATIENCE", 0.2)
    turns: list[int] = []

    def turn() -> None:
        while True:
            turns.append(1)
            gevent.sleep(0.01)

    greenlet = gevent.spawn(turn)
    with pytest.raises(BadSetting, match="the disk has not answered for"):
        logfile.check(tmp_path / "log")
    greenlet.kill()
    assert len(turns) > 3


def test_it_is_checked_by_opening_it(tmp_path: Path) -> None:
    logfile.check(tmp_path / "log")
    with pytest.raises(BadSetting, match="Is a directory"):
        logfile.check(tmp_path)


def test_many_signals_while_a_disk_does_not_answer_open_it_twice_at_most(
    tmp_path: Path, stuck: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    logfile._file[:] = [tmp_path / "log"]
    before = logfile.times_opened()
    for _ in range(1000):
        logfile.open_again()
    stuck.set()
    assert logfile._opener.flush(20)
    assert 1 <= logfile.times_opened() - before <= 5
    assert caplog.text.count("is opened again") == logfile.times_opened() - before


def test_a_file_that_a_reload_has_named_meanwhile_is_the_one_that_counts(tmp_path: Path, stuck: threading.Event) -> None:
    logfile._file[:] = [tmp_path / "first"]
    logfile.open_again()
    logfile.move_to(tmp_path / "second")
    stuck.set()
    assert logfile._opener.flush(20)
    os.write(2, b"here\n")
    assert (tmp_path / "second").read_bytes() == b"here\n"
    assert not (tmp_path / "first").exists() or (tmp_path / "first").read_bytes() == b""


def test_who_writes_waits_for_room_although_nobody_waits_for_a_pipe_to_be_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    fd = logfile._open(tmp_path / "pipe")
    try:
        assert os.get_blocking(fd)
    finally:
        os.close(fd)
        os.close(reader)
