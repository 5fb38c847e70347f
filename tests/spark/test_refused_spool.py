"""A spool that may not be read, or is none: one sentence that names the fix, to collectors and queries alike."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from framework.spark import options
from framework.spark.reader import NsqBatchReader, NsqStreamReader
from framework.spool import Spool, SpoolError, segment
from tests.spark.conftest import messages

_NOBODY = 65534
SPOOL = Path("spool")  # relative: the folders above are for their owner alone


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with Spool(SPOOL) as spool:
        spool.land(messages(0, 10))
    yield SPOOL
    for path in (SPOOL, SPOOL / "main"):
        path.chmod(0o755)


def collect() -> None:
    Spool(SPOOL).land(messages(10, 20))


def read_stream() -> None:
    reader = NsqStreamReader(options.stream_read({"spoolDir": str(SPOOL), "collector": "external"}))
    object.__setattr__(reader._options, "spool_dir", SPOOL)
    start = reader.initialOffset()
    for task in reader.partitions(start, reader.latestOffset({**start, "collectors": {"main": [1, 0]}}, ReadAllAvailable())):
        list(reader.read(task))


def read_batch() -> None:
    reader = NsqBatchReader(options.batch_read({"spoolDir": str(SPOOL)}))
    object.__setattr__(reader._options, "spool_dir", SPOOL)
    for task in reader.partitions():
        list(reader.read(task))


LOOKS = [collect, read_stream, read_batch]


def test_nothing_is_wrong_with_it_as_it_is(spool: Path) -> None:
    for look in LOOKS:
        look()


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("what", [".", "epoch", "main", "a segment"])
def test_what_may_not_be_read_is_named_with_the_fix(spool: Path, what: str, look: Callable[[], None]) -> None:
    path = Path(str(segment.listing(spool / "main")[0].path)) if what == "a segment" else spool / what
    path.chmod(0)
    first = spool if look is collect else path  # it is refused its lock before
    words = f"^spool {spool}.*: Permission denied: {first}.*; let the user of this process read and write it"
    with without_privileges(), pytest.raises(SpoolError, match=words):
        look()


@pytest.mark.parametrize("look", LOOKS)
def test_a_file_in_place_of_the_folder_is_named_with_the_fix(spool: Path, look: Callable[[], None]) -> None:
    spool.rename("moved")
    spool.write_text("no folder")
    with pytest.raises(SpoolError, match=f"^spool {spool}.*: Not a directory: {spool}.*; move away what has its name"):
        look()
    spool.unlink()
    Path("moved").rename(spool)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", b"a\0b"])
def test_an_epoch_that_says_nothing_is_no_life_of_a_spool(spool: Path, content: bytes, look: Callable[[], None]) -> None:
    """Two spools with an empty one would be one and the same to a checkpoint."""
    (spool / "epoch").write_bytes(content)
    with pytest.raises(
        SpoolError, match=f"^spool {spool}: its file epoch is damaged: put back what it said, or begin an empty f"
    ):
        look()


@pytest.mark.parametrize(
    ("became", "fix"), [("a file", "move away what has its name"), ("locked away", "let the user of this process")]
)
def test_a_collector_that_lives_on_names_what_became_of_its_folder(spool: Path, became: str, fix: str) -> None:
    with Spool(SPOOL) as living:
        living.land(messages(10, 20))
        if became == "a file":
            shutil.rmtree(spool / "main")
            (spool / "main").touch()
        else:
            (spool / "main").chmod(0)
        with without_privileges(), pytest.raises(SpoolError, match=f"cannot be opened: .*; {fix}"):
            living.land(messages(20, 30))
        if became == "a file":
            (spool / "main").unlink()
        else:
            (spool / "main").chmod(0o755)
        assert living.land(messages(20, 30)) == 10
