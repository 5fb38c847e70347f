"""Long work in slices: what else the hub has to do is done meanwhile, and what was cut up is whole again."""

from __future__ import annotations

import itertools
import struct
import sys
import time
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.pywsgi import Input
from hypothesis import given
from hypothesis import strategies as st

from framework.nsqd import payloads, slices
from framework.nsqd.httpbody import Body
from framework.nsqd.slices import Slices
from framework.nsqd.store.record import MAX_RECORD_BYTES, MAX_RECORD_MESSAGES, Batch, bodies
from tests.nsqd.rounds import starter


def _spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def _ticks(until: gevent.Greenlet) -> int:
    count = 0
    while not until.ready():
        gevent.sleep(0.0001)
        count += 1
    return count


def _work(slices: int) -> None:
    at_work = Slices()
    for _ in range(slices):
        _spin(0.0015)
        at_work.breathe()


def test_timers_ring_between_the_slices_of_long_work() -> None:
    assert _ticks(gevent.spawn(_work, 100)) > 30  # with gevent.sleep(0), two


def test_many_that_work_long_leave_the_timers_their_turn() -> None:
    workers = [gevent.spawn(_work, 100) for _ in range(3)]
    assert _ticks(gevent.spawn(gevent.joinall, workers)) > 30


def test_those_that_had_their_round_make_no_slice_of_others_shorter() -> None:
    before = slices._waiting
    gevent.joinall([gevent.spawn(slices.next_round) for _ in range(20)], raise_error=True)
    assert slices._waiting == before


def test_a_commit_takes_no_more_rounds_because_others_have_long_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All publishers wait for it: 100 clients with long bodies made one of 4,000,000 messages take 20 times as long."""
    nsqd = starter(tmp_path, monkeypatch)()
    topic = nsqd.broker.topic("t")
    topic.settle()
    rounds, clock = list[int](), itertools.count()
    monkeypatch.setattr(slices, "time", SimpleNamespace(monotonic=lambda: next(clock) * 0.0001))
    monkeypatch.setattr(slices, "next_round", lambda: rounds.append(1))
    monkeypatch.setattr(slices, "_waiting", 100)
    nsqd.broker._committed([Batch(topic.id, topic.next + at, 1, 0, 0, b"\0\0\0\1x") for at in range(1000)])
    assert 0 < len(rounds) <= 100


def test_what_is_wanted_soon_leaves_the_timers_their_turn() -> None:
    left = [100]

    def again() -> None:
        _spin(0.0015)
        left[0] -= 1
        if left[0]:
            slices.soon(again)

    slices.soon(again)
    assert _ticks(gevent.spawn(lambda: [slices.next_round() for _ in range(99)])) > 30
    while left[0]:
        gevent.sleep(0.001)


class _Endless(RawIOBase):
    """A client that sends faster than it is read."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return len(buffer)


def _chunked(data: bytes) -> Body:
    return Body(Input(BufferedReader(BytesIO(data)), None, None, True), Slices())  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 16384])
def test_a_body_in_tiny_chunks_leaves_others_their_turn(size: int) -> None:
    body = _chunked(b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
    assert _ticks(gevent.spawn(lambda: [None for _ in iter(lambda: body.read(size), b"")])) > 30


def test_a_body_that_nobody_wants_leaves_others_their_turn() -> None:
    body = Body(Input(BufferedReader(_Endless()), 2 << 30, None, False), Slices())
    assert _ticks(gevent.spawn(body._discard)) > 30


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=20), st.integers(1, 50), st.integers(1, 30))
def test_chunks_are_one_body_and_what_follows_is_left(pieces: list[bytes], most: int, buffered: int) -> None:
    data = b"".join(b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\nX: a\r\nY:\r\n\r\nGET"
    stream = BufferedReader(BytesIO(data), buffered)  # type: ignore[arg-type]
    body = Body(Input(stream, None, None, True), Slices())
    read = list(iter(lambda: body.read(most), b""))
    assert (b"".join(read), all(len(one) == most for one in read[:-1])) == (b"".join(pieces), True)
    assert (body.read(), stream.read()) == (b"", b"GET")


def _whole(found: list[payloads.Payload]) -> list[bytes]:
    for payload, count in found:
        assert 0 < count <= MAX_RECORD_MESSAGES
        assert count == 1 or len(payload) <= MAX_RECORD_BYTES
    return [body for payload, count in found for body in bodies(payload, count)]


@given(st.lists(st.sampled_from([b"", b"x", b"yy" * 300, b"z" * 5000]), max_size=30), st.integers(1, 60))
def test_lines_are_messages_in_their_order(some: list[bytes], times: int) -> None:
    lines = some * times
    assert _whole(payloads.lines(b"\n".join(lines), 5000)) == [line for line in lines if line]


def test_one_line_that_is_too_long_refuses_all_wherever_it_is() -> None:
    for lines in ([b"x" * 11], [b"x"] * 5000 + [b"x" * 11], [b"x" * 11] + [b"x"] * 5000):
        with pytest.raises(payloads.TooLong):
            payloads.lines(b"\n".join(lines), 10)


@pytest.mark.parametrize(("count", "size"), [(1, 3_000_000), (500, 1), (501, 1), (20_001, 1), (30, 100_000)])
def test_messages_published_at_once_are_cut_into_records_in_their_order(count: int, size: int) -> None:
    messages = [b"%07d" % at + b"x" * size for at in range(count)]
    assert _whole(payloads.cut(b"".join(struct.pack(">i", len(one)) + one for one in messages), count)) == messages


def test_a_batch_weighs_at_least_what_it_takes_in_memory() -> None:
    """The windows of channels are bounded by it; a million tiny records are bigger than their payloads."""
    batch = Batch(1 << 31, time.time_ns(), 1, time.time_ns(), 0, b"\0\0\0\1x")
    assert batch.weight >= sys.getsizeof(batch) + sys.getsizeof(batch.payload) + 2 * sys.getsizeof(batch.ts)
