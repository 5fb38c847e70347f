"""What a collector holds open, and how its files may be used by others: as much after a week as after its start."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import gevent
import psutil
import pytest

from framework.errors import WrongUse
from framework.message import Batch
from framework.spool import Spool, SpoolError, files
from tests.spool.rows import NOTED, MakeBatch


@pytest.fixture
def no_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_landing_leaves_nothing_open(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 1))
        before = psutil.Process().num_fds()
        for n in range(1, 6):
            spool.land(batch(n, n + 1))
        assert psutil.Process().num_fds() == before


def test_a_collector_whose_files_were_removed_lets_go_of_the_lock_that_it_had(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 1))
        before = psutil.Process().num_fds()
        for n in range(1, 4):
            for path in spool.folder.iterdir():
                path.unlink()
            assert spool.land(batch(n, n + 1)) == 1
        assert psutil.Process().num_fds() == before


def test_a_lock_that_is_not_to_be_had_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with Spool(tmp_path):
        before = psutil.Process().num_fds()
        for _ in range(3):
            with pytest.raises(WrongUse, match="is this collector already"):
                Spool(tmp_path).open()
        monkeypatch.setattr(files.fcntl, "flock", none)
        for _ in range(3):
            with pytest.raises(SpoolError, match="No locks available"):
                Spool(tmp_path, "other").open()
        assert psutil.Process().num_fds() == before


def test_others_may_read_what_says_who_locks_and_when_rows_were_taken(tmp_path: Path, batch: MakeBatch, no_mask: None) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 1))
        modes = {name: (spool.folder / name).stat().st_mode & 0o777 for name in ("lock", NOTED)}
    assert modes == {"lock": 0o644, NOTED: 0o644}


def test_the_lock_says_who_has_it_now(tmp_path: Path) -> None:
    (tmp_path / "main").mkdir()
    (tmp_path / "main" / "lock").write_text("9" * 30)
    with Spool(tmp_path) as spool:
        assert (spool.folder / "lock").read_text() == str(os.getpid())


def test_what_a_dead_one_began_is_removed_whatever_its_clock_said(tmp_path: Path) -> None:
    """Alone, as its lock says, there is nobody who could be at it."""
    with Spool(tmp_path) as spool:
        (spool.folder / "ahead.tmp").write_bytes(b"half")
        ahead = (spool.folder / "ahead.tmp").stat().st_mtime + 3600
        os.utime(spool.folder / "ahead.tmp", (ahead, ahead))
    Spool(tmp_path).open()
    assert not (spool.folder / "ahead.tmp").exists()


def test_while_one_batch_lands_the_others_wait_on_the_hub_and_not_in_its_pool(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which resolves names as well."""
    spool, go, inside, most = Spool(tmp_path), threading.Event(), [0], [0]
    land = spool._land

    def slow(some: Batch) -> int:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        assert go.wait(20)
        landed = land(some)
        inside[0] -= 1
        return landed

    monkeypatch.setattr(spool, "_land", slow)
    landing = [gevent.spawn(spool.land, batch(n, n + 1)) for n in range(5)]
    with gevent.Timeout(20):
        while not inside[0]:
            gevent.sleep(0.001)
        gevent.sleep(0.02)  # as long as a second one needs to get there
        go.set()
        assert [one.get() for one in landing] == [1] * 5
    assert most == [1]


@pytest.mark.parametrize("retention", [-1.0, 0.0, float("nan")])
def test_a_retention_is_above_nothing(tmp_path: Path, retention: float) -> None:
    with pytest.raises(WrongUse, match=r"Spool\(retention=.*\): seconds above 0 are needed"):
        Spool(tmp_path, retention=retention)
    Spool(tmp_path, retention=0.5)
