"""A dead letter is read in whichever form it was stored, and chosen by what it says."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.deadletters import Letter, Selection, moment, of_handler, topic_of
from framework.deadletters.letter import read
from framework.errors import BadName, WrongUse
from framework.message import Message
from framework.middleware.dead_letter import letters, traceback_of
from framework.middleware.retry import describe
from framework.names import MAX_LENGTH

NOW = datetime.now(UTC)


def original(body: bytes) -> Message:
    origin = SimpleNamespace(topic="orders", channel="billing", node="a:4150")
    return Message(b"0123456789abcdef", 1_700_000_000_000_000_000, 7, body, origin)


def delivered(body: bytes) -> Message:
    return Message(b"fedcba9876543210", 1_800_000_000_000_000_000, 1, body, SimpleNamespace(node="b:4150"))


@given(st.binary(min_size=1), st.text())
def test_what_was_dead_lettered_is_read_again_byte_for_byte(body: bytes, words: str) -> None:
    whole, short, bare = letters(
        original(body), "Reject: " + words.encode(errors="replace").decode(), traceback_of(ValueError("why"))
    )
    for form in (whole, short):
        letter = read(delivered(form))
        assert (letter.topic, letter.channel, letter.id, letter.node) == ("orders", "billing", "0123456789abcdef", "a:4150")
        assert (letter.attempts, letter.body) == (7, body)
        assert letter.published == datetime.fromtimestamp(1_700_000_000, UTC)
        assert letter.dead is not None
        assert abs(letter.dead - datetime.now(UTC)) < timedelta(minutes=1)
    assert "ValueError: why" in read(delivered(whole)).traceback
    assert read(delivered(bare)).body == body


def test_the_headers_of_a_message_are_in_its_letter_and_those_that_nobody_may_publish_are_not() -> None:
    message = original(b"x")
    message.headers = {"traceparent": "00-1"}
    whole, short, _ = letters(message, "why", "")
    assert [dict(read(delivered(form)).headers) for form in (whole, short)] == [{"traceparent": "00-1"}] * 2
    assert read(delivered(whole.replace(b"00-1", rb"\r\nevil: 1"))).headers == {}
    assert b"headers" not in next(letters(original(b"x"), "why", ""))


LOGIN = "nsq://user:hunter2@host:4150/?token=hunter3&access_token=hunter4&Password=hunter5&x=1"


@pytest.mark.parametrize("before", range(0, 320, 7))
def test_no_secret_of_a_url_is_in_a_letter_wherever_it_is_cut(before: int) -> None:
    try:
        raise ValueError("x" * before + " " + LOGIN) from ValueError("y" * (7600 + before) + " " + LOGIN)
    except ValueError as error:
        [whole, *_] = letters(original(b"x"), describe(error), traceback_of(error))
    assert b"hunter" not in whole
    assert b"host" in whole


def test_a_letter_of_an_earlier_version_is_read_without_secrets() -> None:
    letter = read(delivered(next(letters(original(b"x"), f"ValueError: {LOGIN}", f"Traceback: {LOGIN}"))))
    assert letter.reason == "ValueError: nsq://host:4150/?token=…&access_token=…&Password=…&x=1"
    assert "hunter" not in letter.traceback


def test_an_exception_with_a_megabyte_of_words_leaves_room_for_its_frames() -> None:
    try:
        raise ValueError("x" * 1_000_000)
    except ValueError as error:
        trace = traceback_of(error)
    assert "in test_an_exception_with_a_megabyte" in trace
    assert "ValueError: xxx" in trace
    assert len(trace) < 8000


@pytest.mark.parametrize("body", [
    b'{"no": "header"}\nbut two lines', pytest.param(b'{"x":' + b"[" * 50_000 + b"\n", id="deep"), b"\xff\n", b"", b"\n",
])  # fmt: skip
def test_of_a_body_alone_the_id_and_the_time_are_the_letters_own(body: bytes) -> None:
    letter = read(delivered(body))
    assert letter.body == body
    assert (letter.topic, letter.channel, letter.attempts) == ("", "", 0)
    assert letter.id == "fedcba9876543210"
    assert letter.dead == datetime.fromtimestamp(1_800_000_000, UTC)


def died(ago: float | None, *, id_: str = "a", reason: str = "ValueError: Odd") -> Letter:
    dead = None if ago is None else NOW - timedelta(seconds=ago)
    return Letter("orders", "billing", id_, "a:4150", 3, reason, None, dead, "", b"", delivered(b""))


@pytest.mark.parametrize(
    ("selection", "taken"),
    [
        (Selection(), True),
        (Selection(ids={"a", "b"}), True),
        (Selection(ids={"b"}), False),
        (Selection(reason="odd"), True),
        (Selection(reason="even"), False),
        (Selection(since=NOW - timedelta(seconds=60)), True),
        (Selection(since=NOW - timedelta(seconds=59)), False),
        (Selection(before=NOW - timedelta(seconds=60)), False),
        (Selection(before=NOW - timedelta(seconds=59)), True),
        (Selection(ids={"a"}, reason="even"), False),
    ],
)
def test_a_letter_is_chosen_when_it_fits_all_that_is_given(selection: Selection, taken: bool) -> None:
    assert selection.takes(died(60)) is taken


def test_a_letter_of_unknown_age_is_in_no_span_of_time() -> None:
    assert Selection().takes(died(None))
    assert not Selection(since=NOW).takes(died(None))
    assert not Selection(before=NOW).takes(died(None))


def test_a_time_is_a_date_or_a_moment_or_so_long_ago() -> None:
    assert moment("2026-05-01") == datetime(2026, 5, 1, tzinfo=UTC)
    assert moment("2026-05-01T18:30") == datetime(2026, 5, 1, 18, 30, tzinfo=UTC)
    assert moment("2026-05-01T18:30+02:00") == datetime(2026, 5, 1, 16, 30, tzinfo=UTC)
    assert abs(moment("90m") - (datetime.now(UTC) - timedelta(minutes=90))) < timedelta(minutes=1)
    for wrong in ("soon", "", "-5s", "9999999h", "2026-13-01"):
        with pytest.raises(ValueError, match="is not a time: write 2026-05-01"):
            moment(wrong)


def test_the_times_of_a_letter_that_says_no_zone_are_utc() -> None:
    whole = next(letters(original(b"x"), "why", "")).partition(b"\n")[0]
    header = json.loads(whole) | {"published": "2026-05-01T18:30:00", "dead": "2026-05-01T18:30:00+02:00"}
    letter = read(delivered(json.dumps(header).encode() + b"\nx"))
    assert (letter.published, letter.dead) == (datetime(2026, 5, 1, 18, 30, tzinfo=UTC), datetime(2026, 5, 1, 16, 30, tzinfo=UTC))


def test_a_letter_without_a_time_of_its_own_has_none() -> None:
    bare = Message(b"id", 0, 1, b"only a body", SimpleNamespace(node="b:4150"))
    assert (read(bare).dead, read(bare).published) == (None, None)


def test_a_dead_letter_topic_may_be_called_by_its_handler() -> None:
    for name in ("orders/billing", "orders.billing", "orders.billing.dead"):
        assert topic_of(name) == "orders.billing.dead"
    long = "t" * 40 + "/" + "c" * 40
    assert topic_of(long) == of_handler(SimpleNamespace(topic="t" * 40, channel="c" * 40))  # type: ignore[arg-type]
    assert topic_of(topic_of(long)) == topic_of(long)
    longest = "t" * (MAX_LENGTH - len(".dead"))
    assert topic_of(longest) == f"{longest}.dead"
    with pytest.raises(WrongUse, match="write topic/channel"):
        topic_of(f"{longest}t")
    for wrong in ("a b", "orders/", "/billing", "", "a b.dead"):
        with pytest.raises(BadName):
            topic_of(wrong)
