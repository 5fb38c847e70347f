"""A gevent.Timeout that a handler left running hits the next message of its slot, and costs that one no attempt."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import gevent
import pytest

from framework.engine import later_dialler as later
from framework.message import Message


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "POLL", 0.1)


def store(broker: Any) -> Callable[..., None]:
    return lambda topic, body, *, delay=0.0: gevent.spawn_later(delay, broker.publish, topic, body)


class Leaky:
    """Handles the first with a Timeout that it does not cancel; the others wait for longer than that lasts."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, int]] = []
        self.ended: list[bytes] = []

    def __call__(self, job: Any) -> None:
        (message,) = job if isinstance(job, Sequence) else (job,)
        self.calls.append((message.body, message.attempts))
        if message.body == b"leaks":
            gevent.Timeout(0.6).start()
            gevent.sleep(0.3)
        elif len(self.calls) == 2:
            gevent.sleep(5)
        self.ended.append(message.body)


@pytest.mark.parametrize("options", [{}, {"batch": 1}])
def test_it_costs_the_next_message_no_attempt(
    broker: Any, run: Callable[..., Any], caplog: pytest.LogCaptureFixture, options: dict[str, int]
) -> None:
    handle = Leaky()
    running = run(handle, dead=store(broker), concurrency=1, max_attempts=1, **options)
    broker.publish("orders", b"leaks", b"innocent")
    running.until(lambda: len(handle.ended) == 2)
    assert handle.calls == [(b"leaks", 1), (b"innocent", 1), (b"innocent", 1)]
    assert running.stop()["dead"] == 0
    assert re.search(r"a gevent\.Timeout of 0\.6 s ended 0\.\d s after the start of this call", caplog.text)


def test_one_that_the_message_itself_began_is_its_failure(broker: Any, run: Callable[..., Any]) -> None:
    letters: list[str] = []

    def handle(message: Message) -> None:
        with gevent.Timeout(0.3):
            gevent.sleep(5)

    running = run(handle, dead=lambda topic, body, **_: letters.append(topic), concurrency=1, max_attempts=1)
    broker.publish("orders", b"slow")
    running.until(lambda: letters)
    assert running.stop()["dead"] == 1
