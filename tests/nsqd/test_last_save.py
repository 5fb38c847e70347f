"""An nsqd that cannot save at its end says of which folder, and leaves nothing that says that it runs."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import gevent
import pytest

from framework.nsqd.health import Health
from framework.nsqd.journal import NotStored
from framework.nsqd.options import parse
from framework.nsqd.server import RUNNING, Server
from framework.nsqd.store.reserve import Reserve


@pytest.mark.parametrize("read_only", [False, True])
def test_what_could_not_be_saved_at_the_end_is_raised_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    near = "127.0.0.1:0"
    server = Server(parse([f"--data-path={tmp_path}", f"--tcp-address={near}", f"--http-address={near}"]))

    def full() -> None:
        raise NotStored("no space is left on the device")

    saved = server.broker.stop
    monkeypatch.setattr(server.broker, "stop", full)
    running = gevent.spawn(server.run)
    try:
        with gevent.Timeout(20):
            while not (tmp_path / RUNNING).exists():
                gevent.sleep(0.005)
        if read_only:
            monkeypatch.setattr(Path, "unlink", refused)
        server.stop()
        with pytest.raises(NotStored, match=f"{tmp_path} has not what was finished.*comes again: no space is left"):
            running.get(timeout=20)
        assert (tmp_path / RUNNING).exists() == read_only
    finally:
        monkeypatch.undo()
        gc.unfreeze()  # the server froze what this process has, too
        saved()


def refused(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_reserve_that_cannot_be_given_up_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Reserve(tmp_path / "reserve")
    reserve.fill()
    with monkeypatch.context() as patch:
        patch.setattr(os, "truncate", refused)
        assert not reserve.spend()
    assert reserve.spend()


def test_a_fault_that_changes_its_words_again_and_again_is_logged_once_for_each(tmp_path: Path) -> None:
    lines: list[str] = []
    health = Health(lambda level, words: lines.append(words), tmp_path)
    for _ in range(2):
        for words in ("at the log", "at the probe") * 3:
            health.fails("DISK", OSError(errno.EIO, words))
            assert words in health.wrong
        health.works("DISK")
        assert not health.wrong
    assert len(lines) == 4


def test_a_fault_that_has_new_words_each_time_does_not_fill_the_log(tmp_path: Path) -> None:
    lines: list[str] = []
    health = Health(lambda level, words: lines.append(words), tmp_path)
    for at in range(50):
        health.fails("DISK", OSError(errno.EIO, f"at {at}"))
    assert len(lines) == 20
    assert health.wrong.endswith("at 49")
    health.fails("ANOTHER", OSError(errno.EIO, "at 0"))
    assert len(lines) == 21
