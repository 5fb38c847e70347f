"""What a collector tells in files of its folder: what a disk that takes nothing leaves there, and what is in a file's place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from framework.spool import Spool, SpoolError, told
from tests.disks import tmpfs
from tests.spool.rows import MakeBatch


@pytest.mark.parametrize("shared", [False, True])
def test_what_a_full_disk_does_not_take_leaves_no_file(tmp_path: Path, batch: MakeBatch, shared: bool) -> None:
    """Each try left an empty one, and a collector tries with each batch."""
    disk = tmp_path / "disk"
    with tmpfs(disk, 1 << 20):
        root = disk / "spool"
        with Spool(root, shared=shared) as spool:
            spool.land(batch(0, 5))
        before = {*os.listdir(spool.folder)}
        with (disk / "ballast").open("ab", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(b"x" * 4096)
        late = Spool(root, shared=shared, max_bytes=10**6, remember=600)
        for _ in range(3):
            with pytest.raises(SpoolError, match="make room there"):
                late.land(batch(5, 6))
        assert {*os.listdir(late.folder)} == before
        (disk / "ballast").unlink()
        with late:
            assert late.land(batch(5, 6)) == 1
        assert not [name for name in os.listdir(late.folder) if name.endswith(".tmp")]
        assert told.told(late.folder, told.REMEMBER) == 600
