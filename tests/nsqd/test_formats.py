"""Folders of every on-disk format that there was, kept as they were left, and the way from one format to the next."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from framework.nsqd.options import parse
from framework.nsqd.store import Declaration, Declare, Declared, FolderUnusable, Store, formats
from framework.nsqd.verify import Verify
from tests.nsqd.storing import CHANNEL, TOPIC, lose_index
from tests.nsqd.taking import run

KEPT = Path(__file__).with_name("formats")
BOTH = [b"message %d" % at for at in range(10)]
LEFT = [BOTH[1], BOTH[2], BOTH[4], *BOTH[6:], b"deferred", b"in the second segment"]
"""What channel "c" has not finished; two of them wait until the year 2109."""


@pytest.fixture(params=sorted(path.name for path in KEPT.iterdir()))
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder that an older version left, or this one."""
    return shutil.copytree(KEPT / request.param, tmp_path / "folder")


def unpause(opened: Store) -> None:
    """So that all can be taken. The store is closed then."""
    channels = {name: Declared(one.id, one.cursor) for name, one in opened.topics[TOPIC].channels.items()}
    opened.append([Declare(TOPIC, Declaration("t7", channels=channels))])
    opened.close()


@pytest.mark.parametrize("number", [formats.FORMAT, formats.CHANGES])
def test_there_is_a_folder_of_each_format_that_is_written(number: int) -> None:
    assert json.loads((KEPT / str(number) / "meta.json").read_text())["format"] == number


def test_a_folder_of_each_format_is_served_as_it_was_left(kept: Path) -> None:
    opened = Store(kept)
    states = opened.topics[TOPIC].channels
    assert {one.name: (one.id, one.paused) for one in states.values()} == {"c": (CHANNEL, False), "paused": (CHANNEL + 1, True)}
    first = min(states["c"].retries)
    assert sorted((seq - first, one.attempts) for seq, one in states["c"].retries.items()) == [(0, 3), (1, 1), (3, 1)]
    assert opened.reports == []
    unpause(opened)
    found = run(kept)
    assert found.reports == []
    assert found.served["t7/c"] == sorted(LEFT)
    assert found.served["without-a-channel/late"] == [b"waits in the topic"]


def test_a_folder_of_each_format_is_read_without_its_index(kept: Path) -> None:
    lose_index(kept)
    unpause(Store(kept))
    found = run(kept)
    assert found.reports == []
    assert set(found.served["t7/c"]) == {*BOTH, b"deferred", b"in the second segment"}


def test_a_folder_of_each_format_is_sound(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Verify(parse([f"--data-path={kept}"])).run()
    assert "is sound: 2 segments, " in capsys.readouterr().out


class Killed(BaseException):
    pass


def test_a_folder_goes_from_one_format_to_the_next_however_often_that_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A next format, which this test makes up: it has a file more."""
    kept = shutil.copytree(KEPT / "1", tmp_path / "folder")
    done: list[str] = []

    def first(path: Path) -> None:
        done.append("first")
        (path / "more").write_text("half")
        if len(done) == 1:
            raise Killed
        (path / "more").write_text("whole")

    monkeypatch.setattr(formats, "FORMAT", 3)
    monkeypatch.setattr(formats, "STEPS", {1: first, 2: lambda path: done.append("second")})
    with pytest.raises(Killed):
        Store(kept)
    for _ in range(2):
        Store(kept).close()
    assert done == ["first", "first", "second"]
    assert (kept / "more").read_text() == "whole"
    assert json.loads((kept / "meta.json").read_text())["format"] == 3
    monkeypatch.setattr(formats, "FORMAT", 1)
    monkeypatch.setattr(formats, "STEPS", {})
    with pytest.raises(FolderUnusable, match="says format 3, this version reads up to 2: run the version that wrote it"):
        Store(kept)


@pytest.mark.parametrize(
    "said", [b"", b"no JSON", b"[1]", b'{"format":"x"}', b"\xff", pytest.param(b'{"x":' + b"[" * 50_000, id="deep")]
)
def test_a_folder_whose_meta_json_cannot_be_read_is_refused_in_a_sentence(kept: Path, said: bytes) -> None:
    (kept / "meta.json").write_bytes(said)
    with pytest.raises(FolderUnusable, match=r"meta\.json is damaged \(.*\): put it back from a copy") as raised:
        Store(kept)
    assert len(str(raised.value).splitlines()) == 1
    assert (kept / "meta.json").read_bytes() == said
