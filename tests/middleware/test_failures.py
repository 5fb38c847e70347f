"""The last failures of a handler, as an operator sees them."""

from __future__ import annotations

from types import SimpleNamespace

from framework.message import Message
from framework.middleware.failures import Failures


def test_users_and_passwords_of_urls_are_not_in_it() -> None:
    failures = Failures()
    message = Message(b"1", 0, 1, b"", SimpleNamespace(node="a:4150"))
    failures.note(message, "ValueError: boom nsq://user:hunter2@host/x?auth_secret=hush", "requeued")
    [failure] = failures.last
    assert "boom nsq://host/x" in failure.error
    assert "hunter2" not in failure.error
    assert "hush" not in failure.error
