"""Handlers for the tests of slots, importable by a slot process: they do what the body says, and write down what they saw.

$JOURNAL: the file to write to; $KIND: the kind of slot. A body is ``name argument``.
"""

from __future__ import annotations

import os
import time
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import gevent

from framework import Batch, HandlerTimeout, Message, Reject, Retry, publish

journal: ContextVar[str] = ContextVar("journal")
"""Of one call: one that a test has left behind must not write into the next test's."""


user: ContextVar[str] = ContextVar("user", default="nobody")


def note(*words: object) -> None:
    with open(journal.get(), "ab") as file:
        file.write(" ".join(map(str, words)).encode() + b"\n")


def pause(seconds: float) -> None:
    """Block as handlers of this kind block: the greenlet, or the whole thread."""
    (gevent.sleep if os.environ["KIND"] == "greenlet" else time.sleep)(seconds)


def obey(message: Message) -> None:
    journal.set(os.environ["JOURNAL"])
    verb, _, argument = message.body.decode().partition(" ")
    note("start", message.attempts, message.body.decode())
    try:
        VERBS[verb](message, argument)
    except HandlerTimeout as error:
        note("interrupted", error)
        raise
    note("end", message.attempts, message.body.decode())


@dataclass
class Order:
    id: int


def add_up(orders: Batch[Order]) -> None:
    journal.set(os.environ["JOURNAL"])
    note("orders", sorted(order.id for order in orders))
    for order in orders:
        if order.id < 0:
            orders.fail(order, Reject("less than nothing"))
    if any(message.attempts == 1 for message in orders.messages):
        raise ValueError("not at the first attempt")


def obey_batch(batch: Batch) -> None:
    journal.set(os.environ["JOURNAL"])
    note("batch", len(batch))
    for message in batch:
        if message.body == b"reject":
            batch.fail(message, Reject("not this one"))
        if message.body == b"retry" and message.attempts == 1:
            batch.fail(message, Retry("not now", delay=0.01))
        if message.body == b"fail" and message.attempts == 1:
            raise ValueError("none of these")


def fine(message: Message, argument: str) -> None:
    pass


def retry(message: Message, argument: str) -> None:
    if message.attempts == 1:
        raise Retry("come back", delay=float(argument))


def reject(message: Message, argument: str) -> None:
    raise Reject(argument)


def fail(message: Message, argument: str) -> None:
    if message.attempts <= int(argument or 1):
        raise ValueError(f"failed at attempt {message.attempts}")


def leave(message: Message, argument: str) -> None:
    if message.attempts == 1:
        raise SystemExit(3)


def block(message: Message, argument: str) -> None:
    pause(float(argument))


def gate(message: Message, argument: str) -> None:
    """Wait until the file exists, whatever happens."""
    while not Path(argument).exists():
        try:
            pause(0.02)
        except HandlerTimeout as error:
            note("told", error)
            if os.environ["KIND"] == "greenlet":
                raise


def once(message: Message, argument: str) -> None:
    """Wait until the file exists, but only the first time."""
    if message.attempts == 1:
        gate(message, argument)


def heed(message: Message, argument: str) -> None:
    """Run until the message is lost."""
    if message.attempts > 1:
        return
    note("left", 0 < message.seconds_left <= float(argument), message.deadline is not None, message.lease_lost)
    while not message.lease_lost:
        pause(0.02)
    note("lost", message.seconds_left <= 0)


def touch(message: Message, argument: str) -> None:
    message.touch()
    pause(0.2)


def send(message: Message, argument: str) -> None:
    topic, _, body = argument.partition(" ")
    publish(topic, body)


def whoami(message: Message, argument: str) -> None:
    note("user", user.get())
    user.set(argument)


VERBS = {
    "fine": fine, "retry": retry, "reject": reject, "fail": fail, "leave": leave, "block": block, "gate": gate, "once": once,
    "heed": heed, "touch": touch, "send": send, "whoami": whoami,
}  # fmt: skip
