"""The scan of the log at a start: where it is cut, and where what is damaged is no torn end."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.nsqd.store import Store
from framework.nsqd.store.record import HEADER_BYTES
from tests.nsqd.storing import TOPIC, declared, everything, lose_index, publish, segment

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
