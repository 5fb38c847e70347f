"""A spool with a limit takes nothing more when it is full, and has room again when something was read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework import Backoff
from framework.errors import WrongUse
from framework.spool import Spool, SpoolError, SpoolFull, limit, segment, spool
from framework.spool.storage import Location, Remote
from tests.spool.rows import MakeBatch, ids
from tests.storages import memory

__all__ = ["memory"]

BODY = b"x" * 10_000


def size(spool: Spool) -> int:
    return sum(one.path.stat().st_size for one in segment.listing(spool.folder))


def fill(spool: Spool, batch: MakeBatch, first: int = 0) -> int:
    """Land batches of five until it is full; returns the first number that was not landed."""
    for n in range(first, first + 500, 5):
        try:
            spool.land(batch(n, n + 5, body=BODY))
        except SpoolFull:
            return n
    pytest.fail("it is never full")


def test_a_full_spool_takes_nothing_more_and_says_so_once(
    tmp_path: Path, batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path, max_bytes=300_000)
    last = fill(spool, batch)
    assert 300_000 <= size(spool) < 300_000 + 6 * len(BODY), "one batch more than it may have, at the most"
    for _ in range(3):
        with pytest.raises(SpoolFull, match=r"is full, with 3\d\d,\d{3} bytes of 300,000 that it may have \(max_bytes\)") as full:
            spool.land(batch(last, last + 5, body=BODY))
    assert isinstance(full.value, Backoff), "so that the handler gets no messages for a while"
    assert isinstance(full.value, SpoolError)
    assert len(ids(spool)) == last
    assert spool.land(batch(0, last)) == 0, "what is there already may be finished"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    segment.trim(spool.folder, before=4, keep_rows=0)
    assert spool.land(batch(last, last + 5, body=BODY)) == 5
    assert "has room again" in caplog.text


@pytest.mark.parametrize("kind", ["folder", "storage"])
def test_of_those_who_share_it_one_passes_it_by_a_batch(
    tmp_path: Path, memory: Remote, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Not each of those who had looked while there was room."""
    root: Location = tmp_path if kind == "folder" else memory
    write = segment.write
    with Spool(root, shared=True, max_bytes=100_000) as one, Spool(root, shared=True, max_bytes=100_000) as two:
        assert one.land(batch(0, 5, body=BODY)) == 5
        assert two.land(batch(5, 6)) == 1

        def later(*given: Any, **named: Any) -> Any:
            monkeypatch.setattr(segment, "write", write)
            assert two.land(batch(10, 20, body=BODY)) == 10
            return segment.write(*given, **named)

        monkeypatch.setattr(segment, "write", later)
        with pytest.raises(SpoolFull):
            one.land(batch(20, 30, body=BODY))
        assert one.land(batch(10, 20)) == 0, "what is there may be finished"
        assert [found.number for found in segment.listing(one.folder)] == [1, 2, 3]
        segment.trim(one.folder, before=3, keep_rows=0)
        assert one.land(batch(20, 30, body=BODY)) == 10


def test_one_segment_that_was_alone_counts_as_soon_as_there_are_two(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path, max_bytes=60_000) as before:
        before.land(batch(0, 5, body=BODY))
    with Spool(tmp_path, max_bytes=60_000) as spool:
        assert spool.land(batch(5, 10, body=BODY)) == 5
        for _ in range(2):
            with pytest.raises(SpoolFull):
                spool.land(batch(10, 15, body=BODY))


def test_what_others_land_while_a_collector_opens_counts(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(tmp_path, shared=True) as one, Spool(tmp_path, shared=True, max_bytes=60_000) as two:
        one.land(batch(0, 1))
        two.close()
        begin = limit.Limit.begin

        def later(self: limit.Limit) -> None:
            begin(self)
            monkeypatch.undo()
            one.land(batch(10, 20, body=BODY))

        monkeypatch.setattr(limit.Limit, "begin", later)
        with pytest.raises(SpoolFull):
            two.land(batch(20, 30, body=BODY))


def test_what_was_read_keeps_no_more_than_half_of_it(tmp_path: Path, batch: MakeBatch) -> None:
    """Else a spool whose window of ids is larger than its limit would stay full for ever."""
    spool = Spool(tmp_path, max_bytes=300_000)
    last = fill(spool, batch)
    newest = segment.listing(spool.folder)[-1].number
    segment.trim(spool.folder, newest + 1, 500_000, limit.to_keep(spool.folder))
    assert 80_000 < size(spool) <= 150_000
    assert spool.land(batch(last - 10, last)) == 0, "their ids are known all the same"
    assert fill(spool, batch, last) > last + 10


def test_one_segment_alone_is_not_waited_for_because_nobody_deletes_it(tmp_path: Path, batch: MakeBatch) -> None:
    spool = Spool(tmp_path, max_bytes=1000)
    assert spool.land(batch(0, 5, body=BODY)) == 5
    assert limit._size(spool.folder)[0] == 0
    assert spool.land(batch(5, 10, body=BODY)) == 5
    with pytest.raises(SpoolFull):
        spool.land(batch(10, 15))
    segment.trim(spool.folder, 3, 500_000, limit.to_keep(spool.folder))
    assert spool.land(batch(10, 15)) == 5


def test_a_new_process_measures_what_is_there_and_its_limit_counts(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path, max_bytes=300_000) as first:
        last = fill(first, batch)
    with Spool(tmp_path, max_bytes=200_000) as second, pytest.raises(SpoolFull):
        second.land(batch(last, last + 1))
    assert limit.to_keep(second.folder) == 100_000
    with Spool(tmp_path) as third:
        assert third.land(batch(last, last + 1)) == 1
    assert limit.to_keep(third.folder) is None


@pytest.mark.parametrize("most", [0, -1, 1.5, "1 GB"])
def test_a_limit_is_a_number_of_bytes(tmp_path: Path, most: int) -> None:
    with pytest.raises(WrongUse, match=r"Spool\(max_bytes=.*\): a number of bytes above 0 is needed, or None for no limit"):
        Spool(tmp_path, max_bytes=most)


def test_a_full_folder_is_said_once_and_so_is_that_it_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    size = [90]
    monkeypatch.setattr(limit, "_size", lambda _: (size[0], 0))
    one = limit.Limit(tmp_path, 100)
    one.begin()
    one.check()
    size[0] = 100
    one.check()  # it was not asked again: 90 were there
    one._bytes = 100
    for _ in range(2):
        with pytest.raises(limit.SpoolFull):
            one.check()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    size[0] = 99
    for _ in range(2):
        one.check()
        one._bytes = 100
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records[1:]] == ["has room again"]
    size[0] = 100
    with pytest.raises(limit.SpoolFull):
        one.check()
    assert len(caplog.records) == 3
    assert limit.to_keep(tmp_path) == 50
    limit.Limit(tmp_path, None).begin()
    assert limit.to_keep(tmp_path) is None


def test_a_segment_has_so_many_bytes_of_bodies_or_one_that_is_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "SEGMENT_BYTES", 10)

    def runs(*sizes: int) -> list[int]:
        new: Any = {number: SimpleNamespace(body=bytes(size)) for number, size in enumerate(sizes)}
        return [len(run) for run in spool._by_size(new)]

    assert [runs(), runs(5, 5), runs(5, 6), runs(11, 1), runs(11)] == [[], [2], [1, 1], [1, 1], [1]]
    assert [runs(5, 6, 4), runs(5, 6, 5)] == [[1, 2], [1, 1, 1]]


@pytest.mark.parametrize("most", [0, -1, 1.5, "1"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(tmp_path: Path, most: Any) -> None:
    with pytest.raises(WrongUse, match="a number of bytes above 0"):
        limit.Limit(tmp_path, most)
    limit.Limit(tmp_path, 1)
