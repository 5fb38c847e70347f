"""Log lines: one line each with level and logger, and no password in any of them."""

from __future__ import annotations

import logging

import pytest

from framework.observe.logging import LineFormatter, scrub


def record(text: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("shop.handlers", logging.WARNING, __file__, 1, text, args, info)


def test_a_line_has_level_logger_and_text() -> None:
    assert LineFormatter("%(message)s").format(record("took %d s", 3)) == "WARNING shop.handlers took 3 s"


def test_every_line_of_a_traceback_says_where_it_belongs() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        text = LineFormatter("%(message)s").format(record("failed", error=error))
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
        text = LineFormatter("%(message)s").format(record("lost %s", "nsq://user:secret@host:4150", error=error))
    assert "secret" not in text
