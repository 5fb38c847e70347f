"""What damaged bytes were, without any file: the records that they are cut at, and the numbers that each of them had."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from framework.nsqd.store import damage
from framework.nsqd.store.damage import Damage, Numbers, Piece, _repaired, _sizes, pieces
from framework.nsqd.store.record import HEADER_BYTES, MAX_RECORD_MESSAGES, Batch, Declaration, declare, encode

TOPIC, FIRST = 7, 40
LENGTH_AT, COUNT_AT = 8, 24


def payload(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def written(*bodies: bytes, moved: bool = False) -> bytes:
    return b"".join(encode(Batch(TOPIC, FIRST, len(bodies), 1, 0, payload(*bodies), moved), 0))


def lying(data: bytes, at: int, bit: int = 20) -> bytes:
    """With one bit of a field of four bytes the other way round."""
    (value,) = struct.unpack_from(">I", data, at)
    return data[:at] + struct.pack(">I", value ^ 1 << bit) + data[at + 4 :]


# --- pieces --------------------------------------------------------------------------------------------------------------

THREE = written(b"one", b"", b"three" * 3)
TWO = written(b"a" * 9, b"b" * 11)
DECLARED = b"".join(encode(declare(TOPIC, FIRST, 1, Declaration("news")), 0))


@pytest.mark.parametrize(
    "change", [lambda data: data, lambda data: lying(data, LENGTH_AT), lambda data: lying(data, LENGTH_AT, 2)]
)
def test_a_record_is_known_by_its_length_or_else_by_the_sizes_of_its_messages(change: Callable[[bytes], bytes]) -> None:
    data = change(TWO)
    whole = Piece(0, len(TWO), True, TOPIC, FIRST, 2, 2)
    assert list(pieces(data)) == [whole]
    assert list(pieces(data + THREE)) == [whole, Piece(len(TWO), len(THREE), True, TOPIC, FIRST, 3, 2, True)]


@pytest.mark.parametrize(
    ("bodies", "flag", "with_body"), [((b"x", b"y"), True, 2), ((b"x", b""), False, 1), ((b"", b""), False, 0)]
)
def test_a_record_that_was_moved_says_so_or_lacks_bodies(bodies: tuple[bytes, ...], flag: bool, with_body: int) -> None:
    data = written(*bodies, moved=flag)
    for one in (data, lying(data, LENGTH_AT)):
        assert list(pieces(one)) == [Piece(0, len(data), True, TOPIC, FIRST, 2, with_body, True)]


@pytest.mark.parametrize("bit", [3, 20, 29])
def test_the_sizes_are_believed_before_the_count(bit: int) -> None:
    [piece] = pieces(lying(TWO, COUNT_AT, bit))
    assert (piece.length, piece.messages, piece.with_body) == (len(TWO), 2, 2)


@pytest.mark.parametrize("others", [1, MAX_RECORD_MESSAGES - 2])
def test_a_wrong_size_is_put_right_before_bodies_are_counted(others: int) -> None:
    data = lying(written(b"x" * 200, b"", *[b"y"] * others), HEADER_BYTES)
    [piece] = pieces(data)
    assert (piece.messages, piece.with_body, piece.moved) == (others + 2, others + 1, False)


def test_zeros_behind_a_header_that_lies_are_read_once_or_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may leave megabytes of them, each four of which are a size."""
    looks = []

    def sizes(*given: Any) -> Any:
        looks.append(given)
        return _sizes(*given)

    monkeypatch.setattr(damage, "_sizes", sizes)
    [piece] = pieces(lying(TWO, COUNT_AT)[:HEADER_BYTES] + bytes(40_001))
    assert (piece.messages, piece.with_body) == (10_000, 8_000)
    assert len(looks) <= 3


def test_zeros_that_a_wrong_size_leads_into_are_no_bodies_of_finished_messages() -> None:
    [piece] = pieces(lying(written(bytes(10) + b"xyz"), HEADER_BYTES, 3))
    assert (piece.messages, piece.with_body, piece.moved) == (1, 1, False)


def test_one_message_alone_is_known_by_its_size() -> None:
    [piece] = pieces(lying(written(b"x" * 9), LENGTH_AT))
    assert (piece.whole, piece.messages) == (True, 1)


def test_a_size_that_leads_back_ends_no_record() -> None:
    data = lying(written(b"x" * 9), LENGTH_AT)
    back = data[:HEADER_BYTES] + struct.pack(">i", -HEADER_BYTES - 4) + data[HEADER_BYTES + 4 :]
    assert next(pieces(back))[:3] == (0, len(data), False)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
@pytest.mark.parametrize("bit", [0, 1, 6, 12, 30, 31])
def test_one_wrong_bit_of_one_size_is_put_right(at: int, bit: int) -> None:
    bodies = [b"a" * 7, b"bc", b"d" * 90, b"e" * 33]
    sizes = [len(body) for body in bodies]
    place = sum(4 + size for size in sizes[:at])
    wrong = lying(payload(*bodies), place, bit)
    before, whole = _sizes(wrong)
    assert not whole or before != sizes
    assert _repaired(wrong, 4, before) == (sizes, True)
    assert _repaired(wrong, 5, before)[1] is False
    twice = lying(wrong, place, 13)
    assert _repaired(twice, 4, _sizes(twice)[0])[1] is False


def test_a_wrong_size_is_found_again_by_the_count() -> None:
    [piece] = pieces(lying(TWO, HEADER_BYTES))
    assert (piece.whole, piece.messages, piece.with_body) == (True, 2, 2)


@pytest.mark.parametrize(("left", "messages", "with_body"), [(3, 0, 0), (4, 1, 0), (5, 1, 1), (9, 2, 1), (10, 2, 2), (22, 3, 3)])
def test_of_one_that_was_cut_off_as_many_are_counted_as_it_can_have_had(left: int, messages: int, with_body: int) -> None:
    cut = written(b"x" * 30, b"y" * 30, b"z" * 30)[: HEADER_BYTES + left]
    expected = Piece(0, len(cut), False, TOPIC, FIRST, messages, with_body)
    assert list(pieces(cut)) == [expected]
    assert next(pieces(cut + TWO)) == expected


def test_wherever_one_was_cut_off_it_is_not_whole() -> None:
    data = written(b"x" * 10, b"y" * 10, b"z" * 10)
    for end in range(HEADER_BYTES, len(data)):
        assert [piece[:3] for piece in pieces(data[:end])] == [(0, end, False)]


def test_the_sizes_of_one_that_was_cut_off_are_not_all_that_it_had() -> None:
    [piece] = pieces(written(b"x" * 10, b"y" * 10, b"z" * 10)[: HEADER_BYTES + 19])
    assert (piece.whole, piece.messages, piece.with_body) == (False, 3, 3)


def test_a_declaration_is_one_wherever_its_length_says_that_it_ends() -> None:
    for data in (DECLARED, lying(DECLARED, LENGTH_AT)):
        piece = Piece(0, len(DECLARED), True, TOPIC, FIRST)
        assert list(pieces(data)) == [piece]
        assert next(pieces(data + TWO)) == piece
    for cut in (lying(DECLARED, LENGTH_AT)[:-1], DECLARED[:-1], DECLARED[:HEADER_BYTES]):
        assert list(pieces(cut)) == [Piece(0, len(cut), False, TOPIC, FIRST)]


def test_messages_of_json_are_messages() -> None:
    [piece] = pieces(written(b'{"a":1}', b"{}"))
    assert (piece.messages, piece.with_body, piece.whole) == (2, 2, True)


def test_less_than_a_header_is_no_record() -> None:
    for length in (1, HEADER_BYTES - 1):
        assert list(pieces(TWO[:length])) == [Piece(0, length, False)]
    assert list(pieces(b"")) == []
    assert list(pieces(TWO + TWO[:10]))[1:] == [Piece(len(TWO), 10, False)]


# --- numbers -------------------------------------------------------------------------------------------------------------


class Log:
    """What a scan meets, one after the other."""

    def __init__(self) -> None:
        self.numbers = Numbers()

    def damage(self, messages: int = 0, topic: int = TOPIC, first: int = 0, *, room: int = 0, moved: bool = False) -> Damage:
        piece = Piece(0, 0, False, topic, first, messages, messages, moved)
        self.numbers.damages.append(made := Damage(1, 0, HEADER_BYTES + 5 * room, piece))
        return made

    def finish(self) -> list[Damage]:
        self.numbers.finish()
        return self.numbers.damages


@pytest.fixture
def log() -> Log:
    return Log()


def test_what_lacks_between_two_records_was_in_the_damage_between_them(log: Log) -> None:
    log.numbers.met(TOPIC, 0, 5)
    first, second = log.damage(3, room=3), log.damage(2, room=2)
    log.numbers.met(TOPIC, 10, 12)
    log.finish()
    assert (first.lost, second.lost) == ([(TOPIC, 5, 8)], [(TOPIC, 8, 10)])
    assert (first.unknown, second.unknown) == (0, 0)


@pytest.mark.parametrize(("behind", "lost"), [(7, [(TOPIC, 5, 7)]), (5, []), (4, [])])
def test_a_header_that_says_more_than_lacks_is_not_believed(log: Log, behind: int, lost: list[tuple[int, int, int]]) -> None:
    log.numbers.met(TOPIC, 0, 5)
    one = log.damage(3, room=3)
    log.numbers.met(TOPIC, behind, 12)
    log.finish()
    assert (one.lost, one.unknown) == (lost, 0)


@pytest.mark.parametrize(("behind", "lost"), [(9, [(TOPIC, 5, 9)]), (10, [])])
def test_what_no_header_says_was_in_bytes_that_can_hold_it_or_the_numbers_jumped(
    log: Log, behind: int, lost: list[tuple[int, int, int]]
) -> None:
    log.numbers.met(TOPIC, 0, 5)
    one = log.damage(topic=99, room=4)
    log.numbers.met(TOPIC, behind, 12)
    assert one.lost == lost


def test_bytes_of_which_nothing_is_known_had_it_before_those_that_had_something_and_what_was_moved_and_ends(log: Log) -> None:
    log.numbers.met(TOPIC, 0, 5)
    log.numbers.ended(1, 100)
    moved, own, other = log.damage(2, room=9, moved=True), log.damage(2, room=4), log.damage(topic=99, room=3)
    log.numbers.met(TOPIC, 12, 13)
    end = log.numbers.damages[0]
    assert (own.lost, other.lost) == ([(TOPIC, 5, 7), (TOPIC, 10, 12)], [(TOPIC, 7, 10)])
    assert (moved.lost, end.lost) == ([], [])


def test_the_end_of_a_segment_may_have_had_it_where_nothing_else_can(log: Log) -> None:
    log.numbers.met(TOPIC, 0, 5)
    log.numbers.ended(1, 100)
    log.numbers.ended(2, 200)
    log.numbers.met(TOPIC, 8, 9)
    [end] = log.finish()
    assert (end.segment, end.offset, end.is_end, end.lost) == (1, 100, True, [(TOPIC, 5, 8)])


def test_of_the_end_of_a_segment_before_which_nothing_is_known_nothing_is_said(log: Log) -> None:
    log.numbers.ended(1, 100)
    assert log.numbers.damages == []


def test_damage_is_asked_of_once_and_a_later_gap_is_a_jump(log: Log) -> None:
    log.numbers.met(TOPIC, 0, 5)
    one = log.damage(3, room=3)
    log.numbers.met(TOPIC, 5, 6)
    log.numbers.met(TOPIC, 9, 10)
    log.finish()
    assert (one.lost, one.unknown) == ([], 0)


def test_each_topic_asks_for_itself(log: Log) -> None:
    log.numbers.met(TOPIC, 0, 5)
    log.numbers.met(8, 0, 1)
    mine, other = log.damage(2, room=2), log.damage(3, 8, room=3)
    log.numbers.met(TOPIC, 7, 8)
    log.numbers.met(8, 4, 5)
    log.finish()
    assert (mine.lost, other.lost) == ([(TOPIC, 5, 7)], [(8, 1, 4)])


@pytest.mark.parametrize(("first", "lost"), [(37, [(TOPIC, 37, 40)]), (38, [])])
def test_before_the_first_record_of_a_topic_its_own_header_is_all_that_tells(
    log: Log, first: int, lost: list[tuple[int, int, int]]
) -> None:
    one, other = log.damage(3, first=first, room=3), log.damage(3, 99, first, room=3)
    empty, moved = log.damage(0, first=0, room=3), log.damage(3, first=first, room=3, moved=True)
    log.numbers.met(TOPIC, 40, 41)
    assert [each.lost for each in (one, other, empty, moved)] == [lost, [], [], []]


def test_where_segments_are_missing_gaps_mean_nothing(log: Log) -> None:
    log.numbers.begin(TOPIC, 5)
    one = log.damage(room=9)
    log.numbers.restart()
    log.numbers.met(TOPIC, 8, 9)
    assert one.lost == []


def test_what_is_known_from_before_the_scan_counts(log: Log) -> None:
    log.numbers.begin(TOPIC, 5)
    one = log.damage(room=9)
    log.numbers.met(TOPIC, 8, 9)
    assert one.lost == [(TOPIC, 5, 8)]


def test_an_older_record_moves_no_number_back(log: Log) -> None:
    log.numbers.met(TOPIC, 0, 5)
    log.numbers.met(TOPIC, 1, 2)
    one = log.damage(room=9)
    log.numbers.met(TOPIC, 6, 7)
    assert one.lost == [(TOPIC, 5, 6)]


# --- behind the last record ----------------------------------------------------------------------------------------------


def test_behind_the_last_record_each_had_what_its_header_says_one_after_the_other(log: Log) -> None:
    log.numbers.met(TOPIC, 0, 5)
    damages = [log.damage(0), log.damage(3, first=1 << 40), log.damage(2)]
    log.finish()
    assert [(one.lost, one.unknown) for one in damages] == [([], 0), ([(TOPIC, 5, 8)], 0), ([(TOPIC, 8, 10)], 0)]


def test_what_is_damaged_behind_the_last_record_is_its_own_whatever_was_damaged_before_it(log: Log) -> None:
    log.numbers.met(TOPIC, 0, 5)
    before = log.damage(3, room=3)
    log.numbers.met(TOPIC, 8, 9)
    behind = log.damage(2)
    log.finish()
    assert (before.lost, behind.lost) == ([(TOPIC, 5, 8)], [(TOPIC, 9, 11)])


@pytest.mark.parametrize("end", [0, 5])
def test_one_alone_behind_the_last_record_or_declaration_had_what_comes_next(log: Log, end: int) -> None:
    log.numbers.met(TOPIC, 0, end)
    one = log.damage(3, first=1 << 40)
    log.finish()
    assert (one.lost, one.unknown) == ([(TOPIC, end, end + 3)], 0)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("messages", [1, 3])
def test_of_a_topic_that_is_not_known_only_how_many_there_were_is(log: Log, messages: int, moved: bool) -> None:
    log.numbers.met(TOPIC, 0, 5)
    one = log.damage(messages, 99, moved=moved)
    log.finish()
    assert (one.lost, one.unknown) == ([], messages)


def test_less_than_a_header_has_no_room() -> None:
    assert Damage(1, 0, HEADER_BYTES - 1, Piece(0, 0, False)).room == 0


@pytest.mark.parametrize(("first", "lost", "unknown"), [(2, [(TOPIC, 2, 5)], 0), (3, [], 3)])
def test_what_was_moved_is_of_numbers_that_the_topic_had(
    log: Log, first: int, lost: list[tuple[int, int, int]], unknown: int
) -> None:
    log.numbers.met(TOPIC, 0, 5)
    one = log.damage(3, first=first, moved=True)
    log.finish()
    assert (one.lost, one.unknown) == (lost, unknown)


def test_what_was_moved_is_lost_beside_what_the_same_bytes_had(log: Log) -> None:
    log.numbers.met(TOPIC, 0, 5)
    one = log.damage(2, first=1, room=9, moved=True)
    log.numbers.met(TOPIC, 7, 8)
    assert one.lost == [(TOPIC, 5, 7)]
    log.finish()
    assert (one.lost, one.unknown) == ([(TOPIC, 5, 7), (TOPIC, 1, 3)], 0)


def test_what_was_moved_is_lost_once(log: Log) -> None:
    log.numbers.met(TOPIC, 0, 5)
    one = log.damage(2, first=5, room=2, moved=True)
    log.numbers.met(TOPIC, 7, 8)
    log.finish()
    assert one.lost == [(TOPIC, 5, 7)]


@pytest.mark.parametrize(("topic", "moved"), [(TOPIC, False), (99, False), (99, True)])
def test_one_that_had_something_of_another_topic_had_nothing_besides(log: Log, topic: int, moved: bool) -> None:
    log.numbers.met(TOPIC, 0, 5)
    log.numbers.met(8, 0, 1)
    one = log.damage(3, topic, room=3, moved=moved)
    log.numbers.met(8, 3, 4)
    log.finish()
    assert (one.lost, one.unknown) == ([(8, 1, 3)], 0)
