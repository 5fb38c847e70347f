"""Log lines: one line each with level and logger, and no password in any of them. The app's frames, not the framework's."""

from __future__ import annotations

import json
import logging
import sys
import traceback

import pytest

from framework.observe import logging as logs
from framework.observe.logging import JsonFormatter, LineFormatter, scrub
from framework.observe.tracebacks import own_frames


def record(text: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("shop.handlers", logging.WARNING, __file__, 1, text, args, info)


def test_a_line_has_level_logger_and_text() -> None:
    assert LineFormatter().format(record("took %d s", 3)) == "WARNING shop.handlers took 3 s"


@pytest.mark.parametrize("fails", [True, False])
def test_where_the_stack_is_asked_for_it_is_there_beside_a_traceback_or_alone(fails: bool) -> None:
    one = record("where", error=OSError("disk full") if fails else None)
    one.stack_info = "Stack (most recent call last):\n  File shop.py, line 7, in bill"
    line, made = LineFormatter().format(one), json.loads(JsonFormatter().format(one))
    for text in (line, made["exception"]):
        assert "shop.py, line 7, in bill" in text
        assert ("disk full" in text) == fails


@pytest.mark.parametrize(("more", "cut"), [(0, False), (1, True), (50_000, True)])
def test_a_text_is_cut_in_its_middle_where_it_is_too_long_and_not_before(more: int, cut: bool) -> None:
    text = "a" + "x" * (logs.LONGEST + more - 2) + "z"
    found = json.loads(JsonFormatter().format(record("%s", text)))["message"]
    assert (found[0], found[-1]) == ("a", "z")
    assert (f"… ({more} characters left out) …" in found) == cut
    assert (found == text) == (not cut)


def test_every_line_of_a_traceback_says_where_it_belongs() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        text = LineFormatter().format(record("failed", error=error))
    assert len(text.splitlines()) > 4
    assert all(line.startswith("WARNING shop.handlers ") for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("nsq://user:secret@host:4150 is down", "nsq://host:4150 is down"),
        ("nsq://secret@host:1 nsq+lookupd://a:b@c:2", "nsq://host:1 nsq+lookupd://c:2"),
        ("nsq://u:p@ss@host:1", "nsq://host:1"),
        ("mail a@b.c about nsq://host:1", "mail a@b.c about nsq://host:1"),
        ("'nsq://host:1' and 'a@b'", "'nsq://host:1' and 'a@b'"),
        ("'nsq://h?auth_secret=x/y+z&tls=1'", "'nsq://h?auth_secret=…&tls=1'"),
        ("nsq://h?tls=1&token=abc nsq://i?auth_secret_file=/a", "nsq://h?tls=1&token=… nsq://i?auth_secret_file=/a"),
    ],
)
def test_the_user_and_password_of_a_url_are_left_out(text: str, clean: str) -> None:
    assert scrub(text) == clean


def test_a_password_in_an_argument_or_an_error_is_left_out_too() -> None:
    try:
        raise ConnectionError("nsq://user:secret@host:4150")
    except ConnectionError as error:
        text = LineFormatter().format(record("lost %s", "nsq://user:secret@host:4150", error=error))
    assert "secret" not in text


def test_json_is_a_line_that_can_be_read_and_has_no_password_either() -> None:
    one = record("lost %s", "nsq://user:secret@host:4150")
    one.url, one.odd = "nsq://user:secret@host", object()
    text = JsonFormatter().format(one)
    assert "secret" not in text
    assert (made := json.loads(text)) | {"message": "lost nsq://host:4150", "level": "WARNING", "url": "nsq://host"} == made
    assert made["odd"].startswith("<object")


def test_no_secret_is_in_what_extra_nests() -> None:
    one = record("connected")
    one.config = {"brokers": ["nsq://me:hidden@host:4150", ("http://h/?token=hidden",)], "deep": {"url": "nsq://me:hidden@h"}}
    text = JsonFormatter().format(one)
    assert "hidden" not in text
    assert json.loads(text)["config"]["brokers"][0] == "nsq://host:4150"


def test_colours_are_around_the_level_only() -> None:
    assert LineFormatter(coloured=True).format(record("x")) == "\x1b[33mWARNING\x1b[0m shop.handlers x"


def test_the_framework_s_frames_are_left_out_also_of_causes_and_groups() -> None:
    def app(error: BaseException) -> None:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise error from cause

    code = compile("def call_it(function, error):\n    function(error)\n", own_frames.__code__.co_filename, "exec")
    names: dict[str, object] = {}
    exec(code, names)
    for error in (ValueError("plain"), ExceptionGroup("many", [ValueError("one")])):
        try:
            names["call_it"](app, error)  # type: ignore[operator]
        except Exception as raised:
            text = "".join(traceback.format_exception(raised))
        assert "in call_it" in text
        short = own_frames(text)
        assert "in call_it" not in short
        assert short.count("in app") == text.count("in app") == 2
        assert "KeyError: 'cause'" in short


def test_a_failure_of_the_framework_itself_keeps_its_frames() -> None:
    try:
        LineFormatter._prefix(None, None)  # type: ignore[arg-type]
    except AttributeError as error:
        text = "".join(traceback.format_exception(error.with_traceback(error.__traceback__.tb_next)))
    assert own_frames(text) == text


def test_what_a_terminal_obeys_is_written_out() -> None:
    error = ValueError("\x1b[2J\x1b]0;owned\x07 \x00 \x9b2J \u202e\u200fgnp.exe\ttab é")
    text = LineFormatter().format(record("body %s", "\x1b[31m", error=error))
    assert text.isascii() is False  # letters of other languages stay
    assert not set(text) & {"\x1b", "\x07", "\x00", "\x9b", "\u202e", "\u200f"}
    assert "body \\x1b[31m" in text
    assert "\\x1b[2J\\x1b]0;owned\\x07 \\x00 \\x9b2J \\u202e\\u200fgnp.exe\ttab é" in text


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()])
def test_an_exception_that_says_as_much_as_a_message_holds_is_shortened_in_its_middle(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("begin " + "x" * 1_000_000 + " end")
    except ValueError:
        failed = logging.LogRecord("framework.engine", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    line = formatter.format(failed)
    assert len(line) < 70_000
    for kept in ("ValueError: begin xxx", "xxx end", " characters left out"):
        assert kept in line


def test_a_record_without_words_is_a_line_too() -> None:
    assert LineFormatter().format(record("")) == "WARNING shop.handlers "


@pytest.mark.parametrize("level", ["INFO", "a level of the app's own"])
def test_what_is_as_usual_has_no_colour(level: str) -> None:
    one = record("x")
    one.levelname = level
    assert LineFormatter(coloured=True).format(one) == f"{level} shop.handlers x"


def test_of_a_text_that_is_too_long_both_halves_are_kept() -> None:
    text = "".join(f"{number:07d} " for number in range(10_000))
    found = json.loads(JsonFormatter().format(record("%s", text)))["message"]
    left_out = f"… ({len(text) - logs.LONGEST} characters left out) …"
    assert found.split(left_out) == [text[:32_768], text[-32_768:]]
