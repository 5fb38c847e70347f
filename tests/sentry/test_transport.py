"""The thread that sends to Sentry takes what it has room for, and of an endpoint that is no good it is said once."""

from __future__ import annotations

import logging
import threading
import time

import psutil
import pytest
from sentry_sdk.transport import HttpTransport

from framework.sentry.transport import NativeThread, Transport


def test_what_there_is_no_room_for_is_said_to_be_lost() -> None:
    """The SDK counts those events."""
    go, runs, done = threading.Event(), threading.Event(), []
    thread = NativeThread(2)
    assert thread.submit(lambda: (runs.set(), go.wait()))
    runs.wait(10)
    assert [thread.submit(lambda n=n: done.append(n)) for n in range(4)] == [True, True, False, False]
    go.set()
    thread.flush(10.0)
    assert done == [0, 1]
    assert thread.submit(lambda: done.append(9))
    thread.flush(10.0)
    assert done == [0, 1, 9]
    thread.kill()
    before = time.monotonic()
    thread.flush(10.0)
    assert time.monotonic() - before < 5, "nothing is waited for that has ended"


def test_a_flush_ends_when_all_is_done_and_the_thread_when_it_is_killed() -> None:
    ran_in: list[int] = []
    thread = NativeThread(2)
    assert thread.submit(lambda: ran_in.append(threading.get_native_id()))
    began = time.monotonic()
    thread.flush(60.0)
    assert time.monotonic() - began < 30
    process = psutil.Process()
    assert ran_in[0] in [one.id for one in process.threads()]
    thread.kill()
    while ran_in[0] in [one.id for one in process.threads()]:
        assert time.monotonic() - began < 60
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("reasons", "lines"),
    [
        (["network", "network", "status_500"], 1),
        (["status_413"], 1),
        (["ratelimit_backoff", "self_rate_limits", "queue_overflow"], 0),
    ],
)
def test_that_sentry_takes_nothing_is_said_once_and_not_of_what_was_dropped_for_its_sake(
    reasons: list[str], lines: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    dropped: list[str] = []
    monkeypatch.setattr(HttpTransport, "on_dropped_event", lambda self, reason: dropped.append(reason))
    transport = object.__new__(Transport)
    for reason in reasons:
        transport.on_dropped_event(reason)
    assert dropped == reasons, "the SDK counts them"
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == lines
    assert all(line.startswith(f"Sentry does not take events ({reasons[0]});") for line in said)
