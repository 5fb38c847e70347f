"""The storage: rows of the index that name another segment than that which has their messages. None goes on their word."""

from __future__ import annotations

import math
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from framework.nsqd.store import Entry, Retry, Store, TopicSave, store
from framework.nsqd.store.index import FINISHED
from tests.nsqd.faults import failed_transactions
from tests.nsqd.storing import TOPIC, changed_index, declared, everything, killed, payload, publish, saved, segment
from tests.nsqd.taking import run

BODIES = [b"%02d" % at + b"x" * 90 for at in range(60)]
LATER = 1 << 42
"""A due time in the year 2109."""


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("finished", [0, 1, 15, 30])
@pytest.mark.parametrize(
    "statement",
    [
        "update batch set seg = 2 where seg = 1",
        "update batch set seg = 77 where seg = 2",
        "update batch set seg = 1 where seg = 2",
        "update batch set seg = seg + 1",
        "update batch set seg = 3 where seg = 1 and first > (select min(first) from batch)",
        "update batch set seg = 3 where seg = 2 and first > (select min(first) from batch where seg = 2)",
        "delete from batch where seg = 2",
    ],
    ids=[
        "the next", "one that is not there", "the one before", "all of them", "all but the first row", "of the second too",
        "none",
    ],
)  # fmt: skip
def test_a_segment_whose_rows_name_another_is_kept(folder: Path, statement: str, finished: int) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    batches = [publish(opened, body)[0] for body in BODIES]
    position = batches[finished].first
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(position)])
    opened.close()
    changed_index(folder, statement)
    again = Store(folder)
    for _ in range(12):
        again.sweep()
    assert set(everything(again, start=position)) == set(BODIES[finished:])
    assert everything(again, start=position) == BODIES[finished:]
    # It is set right, and what is finished goes as ever.
    again.save(channels=[saved(batches[-1].end)])
    for _ in range(12):
        again.sweep()
    assert len(list((folder / "log").iterdir())) == 1
    again.close()


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("examining", [math.inf, -1.0], ids=["at once", "a record at a time"])
def test_a_kill_before_a_segment_goes_brings_none_of_its_messages_back(
    opened: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examining: float
) -> None:
    batches = [publish(opened, body)[0] for body in BODIES]
    cursor = batches[-1].end
    opened.save([TopicSave(TOPIC, cursor)], [saved(cursor)])
    monkeypatch.setattr(opened.log, "remove", lambda segment: None)
    opened.sweep()
    kept = everything(opened)  # in the active segment, which is too small to be replaced: finished, and not removed yet
    copy = killed(opened, folder, tmp_path / "killed")
    assert segment(copy).exists()
    assert run(killed(opened, folder, tmp_path / "served")).served == {"t7/c": []}
    # On a busy machine one sweep does not get as far as the last segment.
    monkeypatch.setattr(store, "_EXAMINE_SECONDS", examining)
    again = Store(copy)
    assert everything(again) == kept == BODIES[-2:]
    for _ in range(1 if examining > 0 else 2 * len(BODIES)):
        again.sweep()
        assert everything(again, start=cursor) == []
        assert everything(again) in (kept, [])  # those whose rows had gone stay away
    assert everything(again) == []
    assert len(list((copy / "log").iterdir())) == 1
    assert again.reports == []
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_a_segment_is_read_in_parts_before_it_goes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    batches = [publish(opened, body)[0] for body in BODIES]
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(batches[-1].end)])
    opened.close()
    monkeypatch.setattr(store, "_EXAMINE_SECONDS", -1.0)  # a record at a time
    again = Store(folder)
    again.sweep()
    assert segment(folder).exists()
    for _ in range(3 * len(BODIES)):
        again.sweep()
    assert len(list((folder / "log").iterdir())) == 1
    again.close()
    assert again._reader._examining == {}


@pytest.mark.usefixtures("small_segments")
def test_of_segments_that_may_go_one_at_a_time_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    batches = [publish(opened, body)[0] for body in BODIES]
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(batches[-1].end)])
    opened.close()
    monkeypatch.setattr(store, "_EXAMINE_SECONDS", -1.0)
    again = Store(folder)
    again.sweep()
    assert len(again.log.numbers) > 2
    assert len(again._reader._examining) == 1  # each holds megabytes of its file
    again.close()


@pytest.mark.usefixtures("small_segments")
def test_what_could_not_be_set_right_is_looked_at_again(folder: Path) -> None:
    """As on a full disk: the transaction fails, and the segment stays until its rows are right."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    batches = [publish(opened, body)[0] for body in BODIES]
    opened.save([TopicSave(TOPIC, batches[-1].end)], [saved(batches[0].first)])
    opened.close()
    changed_index(folder, "update batch set seg = 77 where seg = 2")
    again = Store(folder)
    with failed_transactions():
        for _ in range(3 * len(BODIES)):
            with suppress(sqlite3.Error):
                again.sweep()
    for _ in range(5):
        again.sweep()
    assert everything(again) == BODIES
    again.close()


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize(
    "statement",
    [
        "update batch set seg = seg + 1",
        "update batch set seg = 77",
        "update batch set off = off + 1",
        "update batch set n = 3 where first = (select min(first) from batch)",
        "update batch set first = -first where first = (select min(first) from batch)",
    ],
    ids=["the next", "one that is not there", "between its records", "more than there are", "other messages"],
)
def test_what_is_to_be_tried_again_is_not_given_up_where_its_row_is_wrong(folder: Path, statement: str) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    first, *_, cursor = (publish(opened, body)[0].first for body in BODIES[:21])
    for body in BODIES[21:40]:
        opened.append([Entry(TOPIC, payload(body), 1, LATER)])
    behind, ahead = {first: Retry(0, 1), first + 3: Retry(LATER, 1)}, {cursor + 5: Retry(LATER, 1)}
    early = {cursor + 6: Retry(FINISHED, 1)}
    end = opened.topics[TOPIC].next
    opened.save([TopicSave(TOPIC, end)], [saved(cursor, inflight=[first + 1, first + 7], put=behind | ahead | early)])
    opened.close()
    changed_index(folder, statement)
    served = run(folder).served["t7/c"]
    expected = [BODIES[at] for at in (0, 1, 3, 7, *range(20, 40)) if at != 26]
    assert sorted(served) == sorted(expected)  # all of them, once
