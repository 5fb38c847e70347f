"""Middleware for the tests of slots, declared for a package: it writes down where it ran, and does what a body says.

$JOURNAL: the file to write to; $KIND: the kind of slot; $WORKER: the worker's process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from framework import Batch, Message, Middleware, Reject, Skip, use_middleware

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def note(*words: object) -> None:
    with open(os.environ["JOURNAL"], "ab") as file:
        file.write(" ".join(map(str, words)).encode() + b"\n")


def here() -> str:
    """Which process and which of its native threads this is."""
    return f"{os.getpid()}/{threading.get_native_id()}"


def heard(message: Message, outcome: str) -> None:
    """For a test to replace, in the worker."""


class Outer(Middleware):
    """Says where it is, and ends what bodies tell it to end. $UNFIT: where it does not start, worker or elsewhere."""

    def start(self) -> None:
        note("start", here())
        if os.environ.get("UNFIT") == ("worker" if os.environ["WORKER"] == str(os.getpid()) else "elsewhere"):
            raise OSError("no database")

    def after(self, message: Message, outcome: str) -> None:
        heard(message, outcome)

    def stop(self) -> None:
        note("stop", here())

    def around(self, job: Message | Batch, call: Callable[[], None]) -> None:
        tenant.set("acme")
        if isinstance(job, Batch):
            for message in job:
                if message.body.startswith(b"skip"):
                    job.skip(message)
        elif job.body.startswith(b"skip"):
            raise Skip("as it says")
        note("outer", here())
        call()
        note("out", here())


class Inner(Middleware):
    """Fails as bodies tell it to, at the first attempt."""

    def around(self, job: Any, call: Callable[[], None]) -> None:
        verb = b"" if isinstance(job, Batch) or job.attempts > 1 else job.body
        if verb == b"raise":
            raise ValueError("before the call")
        if verb == b"forget":
            return
        if verb == b"reject":
            raise Reject("not in this shop")
        if verb == b"swallow":
            try:
                call()
            except Exception:
                return
        call()
        if verb == b"commit":
            raise ConnectionError("what the call did cannot be committed")


use_middleware(Outer())
