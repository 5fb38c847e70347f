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


@pytest.mark.parametrize("how", ["write_to", "check"])
def test_no_descriptor_is_kept_beside_stderr(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each time that a log is rotated one more would be open."""
    opened, plain = [], logfile._open
    monkeypatch.setattr(logfile, "_open", lambda path: (opened.append(plain(path)), opened[-1])[1])
    getattr(logfile, how)(tmp_path / "log")
    assert len(opened) == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_what_was_opened_for_nothing_is_closed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload names another file while it is opened."""
    opened, plain, before = [], logfile._open, logfile.times_opened()

    def open_it(path: Path) -> int:
        opened.append(plain(path))
        logfile._file[:] = [tmp_path / "second"]
        return opened[-1]

    monkeypatch.setattr(logfile, "_open", open_it)
    logfile._file[:] = [tmp_path / "first"]
    logfile._open_now("SIGUSR1")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
    assert (len(opened), logfile.times_opened()) == (1, before)


def test_who_writes_waits_for_room_although_nobody_waits_for_a_pipe_to_be_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    fd = logfile._open(tmp_path / "pipe")
    try:
        assert os.get_blocking(fd)
    finally:
        os.close(fd)
        os.close(reader)


def test_what_cannot_be_written_to_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    before = logfile.times_opened()
    for does in (logfile.write_to, logfile.check):
        with pytest.raises(BadSetting, match=r"--log-file .*log: No such file or directory: give a file that may be written"):
            does(tmp_path / "none" / "log")
        assert (logfile.path(), logfile.times_opened()) == (None, before)
    with pytest.raises(BadSetting, match="Is a directory"):
        logfile.check(tmp_path)


def test_stderr_is_the_file_from_then_on_wherever_the_current_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = logfile.times_opened()
    logfile.write_to(Path("log"))
    os.write(2, b"a line\n")
    assert (logfile.path(), logfile.times_opened()) == (tmp_path / "log", before + 1)
    assert (tmp_path / "log").read_text() == "a line\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o640


def test_it_is_said_what_a_signal_to_open_it_again_has_done(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    logfile._open_now("SIGUSR1")
    assert "so there is no file to open again" in caplog.text
    file, before = tmp_path / "folder" / "log", logfile.times_opened()
    logfile._file[:] = [file]
    logfile._open_now("SIGUSR1")
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]
    assert f"SIGUSR1: the log stays where it was: {file}: No such file or directory" in caplog.text
    assert logfile.times_opened() == before
    file.parent.mkdir()
    logfile._open_now("SIGUSR1")
    assert caplog.messages[-1] == f"SIGUSR1: {file} is opened again"
    assert logfile.times_opened() == before + 1
    os.write(2, b"a line\n")
    assert file.read_text() == "a line\n"


def test_a_reload_moves_it_soon(tmp_path: Path) -> None:
    logfile.move_to(tmp_path / "log")
    assert logfile.path() == tmp_path / "log"
    assert logfile._opener.flush(20)
    os.write(2, b"a line\n")
    assert (tmp_path / "log").read_text().endswith("a line\n")


def test_a_pipe_that_nobody_reads_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    try:
        with pytest.raises(BadSetting, match="pipe: No such device or address"):
            logfile.check(tmp_path / "pipe")
    finally:
        os.close(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK))
