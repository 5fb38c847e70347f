"""What is shown of a letter has the headers of its message, and nothing that moves the cursor."""

from __future__ import annotations

from types import SimpleNamespace

from framework.cli.dead.shown import as_dict, page
from framework.deadletters import Letter
from framework.headers import NONE, Headers
from framework.message import Message


def letter(headers: Headers) -> Letter:
    message = Message(b"id", 0, 1, b"", SimpleNamespace(node="a:1"))
    return Letter("orders", "billing", "id", "a:1", 3, "why", None, None, "", b"x", message, headers)


def test_headers_are_shown_where_there_are_any() -> None:
    shown = letter({"traceparent": "00-1", "odd": "\x1b[2J"})
    assert [line for line in page(shown, "orders.billing.dead") if line.startswith("header")] == [
        "header     traceparent: 00-1", "header     odd: \\x1b[2J"
    ]  # fmt: skip
    assert as_dict(shown, "orders.billing.dead")["headers"] == {"traceparent": "00-1", "odd": "\x1b[2J"}


def test_a_letter_without_any_says_nothing_of_them() -> None:
    assert not any(line.startswith("header") for line in page(letter(NONE), "orders.billing.dead"))
    assert "headers" not in as_dict(letter(NONE), "orders.billing.dead")
