"""A module that a slot process cannot import."""

from __future__ import annotations

import os

from framework import Message

if os.environ["WORKER"] != str(os.getpid()):
    raise RuntimeError("only in the worker")


def function(message: Message) -> None:
    pass
