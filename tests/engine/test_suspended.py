"""A process that was suspended for a lease or longer: what came meanwhile is others' by now, and no handler gets it."""

from __future__ import annotations

import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework import Publisher
from framework.engine import guardian as guardians
from framework.engine.guardian import Guardian
from framework.testing.workers import working
from framework.transports.contract import Limits

APP = """
    from framework import handler

    @handler("orders", "say", timeout=1, concurrency=1)
    def say(order: dict) -> None:
        print(f"got {order['n']}", flush=True)
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A guardian's, of which the last is now."""
    now = [100.0]
    monkeypatch.setattr(guardians, "clock", lambda: now[-1])
    return now


def guardian() -> Guardian:
    turns: Any = SimpleNamespace(stamp=time.monotonic(), over=False)
    return Guardian(turns, [], SimpleNamespace(times=0, until=float("inf")), None)  # type: ignore[arg-type]


def test_the_hub_that_runs_first_is_told_how_long_nothing_ran_and_its_thread_says_it_no_second_time(clock: list[float]) -> None:
    one = guardian()
    assert one.stood_still() == 0
    clock.append(107.5)
    assert one.stood_still() == 7.5
    assert one.stood_still() == 0
    clock.append(107.5 + guardians.BLOCKED)
    assert one.stood_still() == 0, "as between any two looks on a busy machine"


def test_the_thread_that_runs_first_tells_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardians, "LOOK", 0.001)
    one = guardian()
    one.start()
    try:
        until = time.monotonic() + 10
        while one._stood_still < 50 and time.monotonic() < until:
            one._looked = time.monotonic() - 50  # as if nothing had run since
            time.sleep(0.01)
        assert 50 <= one.stood_still() < 60
        assert one.stood_still() < 50
    finally:
        one.stop()


@pytest.mark.parametrize(("seconds", "anew"), [(0.2, False), (5.9, False), (6.0, True), (60.0, True)])
def test_a_connection_is_made_anew_where_that_was_as_long_as_its_lease(
    broker: Any, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, seconds: float, anew: bool
) -> None:
    stood = [seconds]
    monkeypatch.setattr(Guardian, "stood_still", lambda _: stood.pop() if stood and broker.finished else 0.0)
    broker.nodes["a:1"].limits = Limits(lease=6.0, max_lease=60.0, max_grant=2500)
    worker = run(lambda message: None)
    broker.publish("orders", b"before")
    worker.until(lambda: not stood)
    worker.until(lambda: broker.dials == 1 + anew and len(broker.connections()) == 1)
    broker.publish("orders", b"after")
    worker.until(lambda: len(broker.finished) == 2)
    worker.stop()
    assert broker.dials == 1 + anew


@pytest.fixture(params=["nsqd", "beanstalkd", "nats"])
def url(request: pytest.FixtureRequest) -> str:
    """Of a real server whose leases are a second long."""
    if request.param == "nats":
        return f"nats://{request.getfixturevalue('start_nats')().address}?ack_wait=1s"
    address = request.getfixturevalue(request.param).address
    return f"nsq://{address}?msg_timeout=1s" if request.param == "nsqd" else f"beanstalkd://{address}?ttr=1s"


@pytest.mark.real
def test_what_came_while_a_worker_was_suspended_and_others_have_finished_since_is_not_handled_again(
    tmp_path: Path, url: str
) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(APP))
    publisher = Publisher(url)
    with working("run", "shop", "--broker", url, cwd=tmp_path) as away:
        away.wait_for("subscribed to")
        away.signal(signal.SIGSTOP)
        publisher.publish_many("orders", [b'{"n": %d}' % n for n in range(1, 4)])
        time.sleep(3.5)  # sent to it three times over
        with working("run", "shop", "--broker", url, cwd=tmp_path) as other:
            other.wait_until(lambda: {f"got {n}" for n in range(1, 4)} <= set(other.out))
            away.signal(signal.SIGCONT)
            away.wait_for("this process has not run for ")
            away.wait_until(lambda: sum("subscribed to" in line for line in away.err) == 2)
            assert other.stop() == 0
        publisher.publish("orders", b'{"n": 4}')
        away.wait_until(lambda: "got 4" in away.out)
        assert away.stop() == 0
    publisher.close()
    assert [line for line in away.out if line.startswith("got")] == ["got 4"]
