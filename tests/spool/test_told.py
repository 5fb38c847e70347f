"""What a collector tells in files of its folder: what a disk that takes nothing leaves there, and what is in a file's place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from framework.spool import Spool, SpoolError, segment, times, told
from framework.spool.root import epoch, lives_of
from tests.disks import tmpfs
from tests.spool.rows import MakeBatch, ids


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


NO_FILES: dict[str, Callable[[Path], object]] = {"a FIFO": os.mkfifo, "a device": lambda path: path.symlink_to("/dev/null")}
"""The one was waited for, for ever, and of others, as /dev/zero, all was read, until memory was full."""


@pytest.fixture(params=NO_FILES)
def in_place_of(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """Puts what is no file in the place of one."""

    def put(path: Path) -> None:
        path.unlink(missing_ok=True)
        NO_FILES[request.param](path)

    return put


@pytest.mark.parametrize("name", ["epoch", "main/epoch", "main/remember", "main/lock"])
def test_what_is_no_file_in_place_of_one_is_named_and_not_waited_for(
    tmp_path: Path, batch: MakeBatch, name: str, in_place_of: Callable[[Path], None]
) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 5))
    in_place_of(tmp_path / name)
    for _ in range(2):
        with pytest.raises(
            SpoolError, match=f"main: cannot be opened: {tmp_path / name} is no file; move away what has its name"
        ):
            Spool(tmp_path).land(batch(5, 6))
    (tmp_path / name).unlink()
    with Spool(tmp_path) as spool:
        assert spool.land(batch(5, 6)) == 1


@pytest.mark.parametrize("name", ["epoch", "main/epoch"])
def test_who_reads_does_not_wait_for_it_either(
    tmp_path: Path, batch: MakeBatch, name: str, in_place_of: Callable[[Path], None]
) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 5))
    in_place_of(tmp_path / name)
    with pytest.raises(OSError, match=f"{tmp_path / name} is no file"):
        epoch(tmp_path), lives_of(tmp_path)


@pytest.mark.parametrize(("name", "known"), [(f"times-{0:020}", set[int]()), ("times", {1, 2, 3})])
@pytest.mark.parametrize("shared", [False, True])
def test_times_are_a_help_and_what_is_no_file_in_their_place_holds_up_nobody(
    tmp_path: Path, batch: MakeBatch, in_place_of: Callable[[Path], None], *, shared: bool, name: str, known: set[int]
) -> None:
    """The second is where an earlier version had them."""
    with Spool(tmp_path, shared=shared) as spool:
        spool.land(batch(0, 5))
        in_place_of(tmp_path / "main" / name)
        assert spool.land(batch(5, 6)) == 1
    with Spool(tmp_path, shared=shared) as spool:
        assert spool.land(batch(0, 7)) == 1
    assert len(ids(spool)) == 7
    assert times.known(tmp_path / "main", segment.listing(tmp_path / "main")).keys() == known
