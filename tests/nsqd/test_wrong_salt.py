"""A ``meta.json`` whose salt is not that of its log: nothing is taken for damaged, and nothing is changed."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.nsqd.backup import Backup
from framework.nsqd.options import parse
from framework.nsqd.store import FolderUnusable, Store, record
from framework.nsqd.store.survey import Survey
from tests.nsqd.storing import TOPIC, declared, everything, flip, lose_index, publish, segment


@pytest.fixture
def kept(folder: Path) -> Path:
    """Two segments with messages that somebody waits for."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"a")
    opened._roll()
    publish(opened, b"b")
    opened.close()
    return folder


def damage(folder: Path) -> int:
    """One bit of the salt; returns what it was."""
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "salt": meta["salt"] ^ 1 << 7}))
    return int(meta["salt"])


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.name.startswith("index.db-")
    }


def back_up(folder: Path) -> None:
    Backup(parse([f"--data-path={folder}", f"--backup={folder}-copy"])).run()


@pytest.mark.parametrize("open_it", [Store, Survey, back_up], ids=["a start", "a look", "a backup"])
@pytest.mark.parametrize("index", ["with", "without"])
def test_it_is_refused_in_a_sentence_with_the_right_one(kept: Path, open_it: Callable[[Path], object], index: str) -> None:
    if index == "without":
        lose_index(kept)
    salt = damage(kept)
    before = files(kept)
    with pytest.raises(FolderUnusable, match=f"meta.json says salt {salt ^ 1 << 7}, its log was written with {salt}:.*othing"):
        open_it(kept)
    assert files(kept) == before
    meta = json.loads((kept / "meta.json").read_text())
    (kept / "meta.json").write_text(json.dumps({**meta, "salt": salt}))
    again = Store(kept)
    assert (everything(again), again.reports) == ([b"a", b"b"], [])
    again.close()


@pytest.mark.parametrize("meta", [None, b"", b"{", b'{"format":1}'])
def test_one_that_is_lost_can_be_made_again_from_what_is_said(kept: Path, meta: bytes | None) -> None:
    (kept / "meta.json").unlink()
    if meta is not None:
        (kept / "meta.json").write_bytes(meta)
    with pytest.raises(FolderUnusable) as refused:
        Store(kept)
    (said,) = re.findall(r"write (\{.*\}) into it", str(refused.value))
    (kept / "meta.json").write_text(said)
    again = Store(kept)
    assert (everything(again), again.reports) == ([b"a", b"b"], [])
    again.close()


def test_damage_at_the_beginning_of_each_segment_is_damage(kept: Path) -> None:
    for number in (1, 2):
        flip(segment(kept, number), 60)
    again = Store(kept)
    assert everything(again) == [b"a", b"b"]
    again.close()


def test_a_log_of_zeros_is_damage(kept: Path) -> None:
    for number in (1, 2):
        segment(kept, number).write_bytes(bytes(segment(kept, number).stat().st_size))
    again = Store(kept)
    assert (everything(again), "1 messages lost" in " ".join(again.reports)) == ([], True)
    again.close()


@given(st.binary(max_size=300), st.integers(0, 0xFFFFFFFF))
def test_the_salt_of_a_record_is_found(body: bytes, salt: int) -> None:
    data = b"".join(record.encode(record.Batch(7, 1, 1, 2, 0, body), salt)) + os.urandom(3)
    assert record.salted(data, 0) == (salt, len(data) - 3)
    assert zlib.crc32(data[8 : len(data) - 3], salt) == int.from_bytes(data[4:8], "big")
