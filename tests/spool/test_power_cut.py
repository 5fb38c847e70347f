"""What a power cut leaves of a spool: of each file what was synced last, under the names that its folder had when synced last.

Nothing cuts the power here. The syncs are noted, and what lies on the disk by them alone is looked at."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.spool import Spool
from framework.spool.root import EPOCH, ensure_epoch
from tests.spool.rows import MakeBatch


class Syncs:
    """What was synced of each file and of each folder, by inode."""

    def __init__(self, fsync: object) -> None:
        self._fsync = fsync
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, list[str]] = {}

    def note(self, handle: int) -> None:
        self._fsync(handle)  # type: ignore[operator]
        there = os.fstat(handle)
        if stat.S_ISDIR(there.st_mode):
            self._names[there.st_ino] = os.listdir(handle)
        else:
            self._contents[there.st_ino] = Path(f"/proc/self/fd/{handle}").read_bytes()

    def left(self, folder: Path) -> Iterator[tuple[str, bytes]]:
        """The files in ``folder`` and below it, with their contents, that a power cut now could not take."""
        for name in self._names.get(folder.stat().st_ino, []):
            path = folder / name
            if path.is_dir():
                yield from self.left(path)
            elif path.exists():
                yield name, self._contents.get(path.stat().st_ino, b"")


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    syncs = Syncs(os.fsync)
    monkeypatch.setattr(os, "fsync", syncs.note)
    return syncs


def test_the_epoch_is_there(tmp_path: Path, syncs: Syncs) -> None:
    minted = ensure_epoch(tmp_path)
    assert dict(syncs.left(tmp_path))[EPOCH] == f"{minted}\n".encode()


def test_every_row_that_was_landed_is_there(tmp_path: Path, batch: MakeBatch, syncs: Syncs) -> None:
    with Spool(tmp_path / "spool", "archive") as spool:
        spool.land(batch(1, 2))
        spool.land(batch(3, 4))
        wanted = {path.name: path.read_bytes() for path in spool.folder.glob("*.arrow")}
        left = dict(syncs.left(tmp_path / "spool"))
    assert len(wanted) == 2
    assert {name: left.get(name) for name in wanted} == wanted
    assert EPOCH in left
