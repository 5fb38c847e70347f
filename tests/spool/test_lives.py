"""Where a spool lies, who collects into it, and which life of a folder it is."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from framework.spool import Spool, SpoolError, root
from framework.spool.root import collectors, ensure_epoch, epoch, lives_of
from framework.spool.storage import Location, Remote
from tests.spool.rows import MakeBatch


def test_each_collector_has_a_life_of_its_own(tmp_path: Path, batch: MakeBatch) -> None:
    assert (collectors(tmp_path / "none"), lives_of(tmp_path / "none")) == ([], {})
    for name in ("a", "b"):
        Spool(tmp_path, name).land(batch(0, 1))
    (tmp_path / "older").mkdir()  # of a version that said none
    lives = lives_of(tmp_path)
    assert list(lives) == ["a", "b"]
    assert lives == {name: epoch(tmp_path / name) for name in ("a", "b")}
    assert len({*lives.values(), epoch(tmp_path)}) == 3


@pytest.mark.parametrize("kind", ["folder", "storage"])
def test_a_life_begins_before_anything_is_landed(tmp_path: Path, memory: Remote, kind: str) -> None:
    """By it a query tells a collector whose folder was emptied from one that went on."""
    place: Location = tmp_path if kind == "folder" else memory
    with Spool(place) as spool:
        (life,) = lives_of(place).values()
    with Spool(place):
        assert (life, lives_of(place)) == (epoch(spool.folder), {"main": life})


def test_a_folder_that_is_a_copy_of_another_is_named(tmp_path: Path, batch: MakeBatch) -> None:
    """Its rows would be read twice."""
    for name in ("a", "b", "d"):
        Spool(tmp_path, name).land(batch(0, 1))
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    with pytest.raises(SpoolError, match="the folders b and c have one epoch, so one is a copy of the other"):
        lives_of(tmp_path)


def test_a_folder_that_is_renamed_meanwhile_is_no_copy(tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be seen under both names."""
    Spool(tmp_path, "old").land(batch(0, 1))
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    names = [["new", "old"], ["new"]]
    monkeypatch.setattr(root, "collectors", lambda _: names.pop(0))
    assert lives_of(tmp_path) == {"new": epoch(tmp_path / "new")}


def test_a_spool_makes_the_folders_above_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c"
    with Spool(folder):
        assert collectors(folder) == ["main"]


def test_an_epoch_that_cannot_be_written_is_told_as_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, mode: str, *rest: Any, **more: Any) -> Any:
        if mode == "x":
            raise OSError(errno.ENOSPC, "no space left")
        return open(path, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match="no space left"):
        ensure_epoch(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_epoch_that_is_gone_when_it_was_made_is_not_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "epoch", lambda _: None)
    with pytest.raises(FileNotFoundError, match=f"the epoch of spool {tmp_path} was deleted just now"):
        ensure_epoch(tmp_path)
