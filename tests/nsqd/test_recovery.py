"""The scan of the log at a start: where it is cut, and where what is damaged is no torn end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework.nsqd.store import Batch, Store, TopicSave, recovery
from framework.nsqd.store.index import Index
from framework.nsqd.store.record import HEADER_BYTES
from tests.nsqd.storing import TOPIC, declared, everything, lose_index, payload, publish, saved, segment

_LENGTH = 8
"""Where a record's header has the length of its payload."""


def two_segments_of_one_length(folder: Path) -> int:
    """Where the last record of the first begins. Each has ends with a message of its own."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, *[b"x" * 50] * 40)
    last = opened.log.size
    publish(opened, b"the last of the first")
    size = opened.log.size
    opened._roll()
    room = size - opened.log.size - 2 * (HEADER_BYTES + 4) - len(b"the last of the second")
    publish(opened, b"y" * room)
    publish(opened, b"the last of the second")
    assert (opened.log.size, opened.log.numbers) == (size, [1, 2])
    opened.close()
    return last


@pytest.mark.parametrize("number", [1, 2])
def test_only_the_segment_that_is_written_to_has_a_torn_end(folder: Path, number: int) -> None:
    """A record that goes on behind the end of its segment, by its header and by the size of its message."""
    last = two_segments_of_one_length(folder)
    lose_index(folder)
    data = bytearray(segment(folder, number).read_bytes())
    at = last if number == 1 else len(data) - HEADER_BYTES - 4 - len(b"the last of the second")
    for byte in (at + _LENGTH + 2, at + HEADER_BYTES + 2):
        data[byte] ^= 1
    segment(folder, number).write_bytes(data)
    again = Store(folder)
    try:
        names = [body for body in everything(again) if body.startswith(b"the last")]
        assert names == ([b"the last of the second"] if number == 1 else [b"the last of the first"])
        (said,) = again.reports
        words = "are damaged: 1 messages lost" if number == 1 else "are the start of a record that was never confirmed: cut off"
        assert f"{len(data) - at} bytes at {at} of segment {number} {words}" in said
        cut = len(data) if number == 1 else at
        assert (segment(folder, 1).stat().st_size, again.log.numbers) == (len(data), [1, 2])
        assert segment(folder, 2).stat().st_size == cut
    finally:
        again.close()


def test_a_start_on_a_log_that_is_whole_begins_no_segment(folder: Path) -> None:
    for at in range(3):
        opened = Store(folder)
        if not at:
            opened.append([declared(TOPIC, "c")])
        publish(opened, b"%d" % at)
        assert opened.log.numbers == [1]
        opened.close()


def test_with_the_index_gone_all_that_was_moved_comes_again_to_who_is_past_it(folder: Path) -> None:
    """It is not known who had finished it. What lies side by side was moved in several records."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    some = [one for at in range(6) for one in publish(opened, b"%d-a" % at, b"%d-b" % at)]
    start, end = some[0].first, some[-1].end
    opened.save([TopicSave(TOPIC, end)], [saved(end)])
    opened._roll()  # its head has the channel behind all of them
    payloads = [one.payload for one in some]
    payloads[2] = payload(b"2-a", b"")
    opened.move([Batch(TOPIC, some[at].first, 2, 7, 0, payloads[at], moved=True) for at in (0, 1, 2, 3, 5)])
    opened.close()
    segment(folder, 1).unlink()
    lose_index(folder)
    again = Store(folder)
    try:
        assert sorted(seq - start for seq in again.topics[TOPIC].channels["c"].retries) == [0, 1, 2, 3, 4, 6, 7, 10, 11]
    finally:
        again.close()


@pytest.mark.parametrize("records", [5, 6, 7])
def test_a_scan_gives_the_index_as_many_rows_at_a_time_as_it_may_hold(
    folder: Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    for at in range(records):
        publish(opened, b"%d" % at)
    opened.close()
    lose_index(folder)
    given, real = list[int](), Index.add_batches

    def add(index: Index, rows: list[Any]) -> None:
        given.append(len(rows))
        real(index, rows)

    monkeypatch.setattr(recovery, "_ROWS", 3)
    monkeypatch.setattr(Index, "add_batches", add)
    again = Store(folder)
    assert everything(again) == [b"%d" % at for at in range(records)]
    assert max(given) == 3
    again.close()
