"""``workers run`` as a process: it starts, works, stops as promised, and refuses what cannot work."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.testing import servers
from framework.testing.servers import Server
from framework.testing.workers import call, working
from tests.cli.shop import SAY, adds_up, broker, numbers, put

pytestmark = pytest.mark.real


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_it_cleanly_and_nothing_is_lost(app: Callable[..., Path], nsqd: Server, number: signal.Signals) -> None:
    folder = app("""
        from time import sleep
        @handler("orders", "say", concurrency=4)
        def say(text: str) -> None:
            sleep(0.01)
            print(f"got {text}", flush=True)
    """)
    put(nsqd, *map(str, range(1000)))
    arguments = ("run", "shop", "--broker", broker(nsqd), "--ledger", "ledger.json")
    with working(*arguments, cwd=folder) as first:
        first.wait_until(lambda: len(first.out) > 100)
        first.signal(number)
        assert first.wait() == 0
    counts = adds_up(folder / "ledger.json")
    assert 100 < counts["finished"] == len(numbers(first)) < 1000
    assert counts["dead"] == counts["lease_lost"] == 0
    assert any(f"ledger orders/say received={counts['received']} finished={counts['finished']}" in line for line in first.err)
    with working(*arguments, cwd=folder) as second:
        second.wait_until(lambda: len(numbers(first) | numbers(second)) == 1000)
        assert second.stop() == 0
    assert counts["finished"] + adds_up(folder / "ledger.json")["finished"] == 1000
    assert nsqd.channel_stats("orders", "say")["timeout_count"] == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_second_signal_gives_everything_back_at_once(
    app: Callable[..., Path], nsqd: Server, number: signal.Signals, code: int
) -> None:
    folder = app("""
        from time import sleep
        @handler("orders", "say")
        def say(text: str) -> None:
            print(f"got {text}", flush=True)
            sleep(50)
    """)
    put(nsqd, "1")
    with working("run", "shop", "--broker", broker(nsqd), "--ledger", "ledger.json", cwd=folder) as worker:
        worker.wait_for("got 1")
        worker.signal(number)
        worker.wait_for("stopping")
        started = time.monotonic()
        worker.signal(number)
        assert worker.wait() == code
        assert time.monotonic() - started < 5
    assert adds_up(folder / "ledger.json") == {"received": 1, "finished": 0, "requeued": 1, "dead": 0, "lease_lost": 0}
    stats = nsqd.channel_stats("orders", "say")
    assert stats["in_flight_count"] == 0
    assert stats["depth"] + stats["deferred_count"] == 1


def test_a_handler_that_outlives_the_drain_is_given_back(app: Callable[..., Path], nsqd: Server) -> None:
    folder = app("""
        from time import sleep
        @handler("orders", "say")
        def say(text: str) -> None:
            print(f"got {text}", flush=True)
            sleep(50)
    """)
    put(nsqd, "1")
    with working("run", "shop", "--broker", broker(nsqd), "--drain", "300ms", "--ledger", "ledger.json", cwd=folder) as worker:
        worker.wait_for("got 1")
        assert worker.stop() == 0
    assert adds_up(folder / "ledger.json")["requeued"] == 1


def test_it_waits_for_a_broker_that_comes_late(app: Callable[..., Path], tmp_path: Path, nsqd: Server) -> None:
    nsqd.stop()
    folder = app(SAY)
    with working("run", "shop", "--broker", broker(nsqd), cwd=folder, ready="cannot be reached") as worker:
        nsqd.start()
        worker.wait_for("ready")
        put(nsqd, "1")
        worker.wait_for("got 1")
        assert worker.stop() == 0


def test_a_broker_that_never_answers_is_exit_3_after_the_deadline(app: Callable[..., Path]) -> None:
    folder = app(SAY)
    started = time.monotonic()
    done = call("run", "shop", "--broker", f"nsq://127.0.0.1:{servers.free_port()}", "--connect-deadline", "1s", cwd=folder)
    assert done.returncode == 3
    assert "workers: handler orders/say: no broker reached within 1 s" in done.stderr.splitlines()[-1]
    assert 1 <= time.monotonic() - started < 10


def test_a_signal_while_it_waits_for_a_broker_is_a_clean_end(app: Callable[..., Path]) -> None:
    folder = app(SAY)
    address = f"nsq://127.0.0.1:{servers.free_port()}"
    with working(
        "run", "shop", "--broker", address, "--connect-deadline", "never", cwd=folder, ready="cannot be reached"
    ) as worker:
        started = time.monotonic()
        assert worker.stop() == 0
        assert time.monotonic() - started < 5


def test_a_timeout_that_the_server_cannot_honour_is_refused_with_the_flag_to_change(
    app: Callable[..., Path], start_nsqd: Callable[..., Server]
) -> None:
    nsqd = start_nsqd("--max-msg-timeout=90s")
    folder = app("""
        @handler("orders", "say", timeout=120)
        def say(text: str) -> None: ...
    """)
    done = call("run", "shop", "--broker", broker(nsqd), cwd=folder)
    assert done.returncode == 2
    assert "shop.say (shop.py:3): timeout=120 is longer than" in done.stderr
    assert "or start nsqd with a longer --max-msg-timeout" in done.stderr
    assert nsqd.http("/stats?format=json")["topics"] == []


def test_the_environment_and_a_file_are_settings_too(app: Callable[..., Path], nsqd: Server) -> None:
    folder = app(SAY)
    (folder / "workers.yaml").write_text("brokers: nsq://127.0.0.1:1\nledger: from-file.json\nlog_level: error\n")
    env = {"BROKER_URL": broker(nsqd), "WORKERS_LOG_LEVEL": "info"}
    with working("run", "shop", "--config", "workers.yaml", "--ledger", "from-flag.json", cwd=folder, env=env) as worker:
        assert worker.stop() == 0
    assert (folder / "from-flag.json").exists()
    assert not (folder / "from-file.json").exists()


ENDLESS = """
    import time

    class Pool(Middleware):
        def stop(self):
            print("stopping", flush=True)
            time.sleep(60)

    use_middleware(Pool())
"""


UNFIT = """
    class Pool(Middleware):
        def start(self):
            raise ConnectionRefusedError("no database")

    use_middleware(Pool())
"""


def test_middleware_that_does_not_start_is_exit_2_and_one_sentence_and_nothing_is_subscribed(
    app: Callable[..., Path], start_nsqd: Callable[..., Server]
) -> None:
    nsqd = start_nsqd()
    done = call("run", "shop", "--broker", broker(nsqd), cwd=app(UNFIT + SAY))
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if "INFO" not in line]
    assert said == ["workers: middleware shop.Pool does not start: ConnectionRefusedError: no database"]
    assert not nsqd.channel_stats("orders", "say")


def test_a_second_signal_is_heeded_while_middleware_stops(app: Callable[..., Path], start_nsqd: Callable[..., Server]) -> None:
    with working("run", "shop", "--broker", broker(start_nsqd()), cwd=app(ENDLESS + SAY)) as worker:
        worker.signal(signal.SIGTERM)
        worker.wait_for("stopping")
        worker.signal(signal.SIGTERM)
        assert worker.wait(deadline=10) == 128 + signal.SIGTERM
    assert any("its stop() was given up" in line for line in worker.err)


def test_an_operator_changes_a_handler_without_its_code(app: Callable[..., Path], nsqd: Server) -> None:
    folder = app("""
    @handler("orders", "fail", max_attempts=100)
    def fail(text: str) -> None:
        raise ValueError(text)
    """)
    nsqd.http("/pub?topic=orders", b"x")
    arguments = ["run", "shop", "--broker", broker(nsqd), "--ledger", "ledger.json"]
    with working(*arguments, cwd=folder, env={"WORKERS_HANDLERS": "{orders/fail: {max_attempts: 1}}"}) as worker:
        worker.wait_for("dead letter")
        assert worker.stop() == 0
    assert adds_up(folder / "ledger.json", "orders/fail")["dead"] == 1


def test_undecodable_messages_become_dead_letters_and_the_connection_lives(app: Callable[..., Path], nsqd: Server) -> None:
    folder = app("""
        @handler("orders", "say")
        def say(order: dict) -> None:
            print(f"got {order['n']}", flush=True)

        @handler("orders.say.dead", "look")
        def look(body: bytes) -> None:
            print(f"dead {body!r}", flush=True)
    """)
    put(nsqd, "not json", '{"n": 1}', "[]", '{"n": 2}')
    with working("run", "shop", "--broker", broker(nsqd), "--ledger", "ledger.json", cwd=folder) as worker:
        worker.wait_until(lambda: len(worker.out) == 4)
        assert worker.stop() == 0
    assert numbers(worker) == {1, 2}
    assert len([line for line in worker.out if line.startswith("dead ") and "the body does not decode to dict" in line]) == 2
    assert adds_up(folder / "ledger.json") == {"received": 4, "finished": 2, "requeued": 0, "dead": 2, "lease_lost": 0}


def test_after_a_suspension_nothing_is_said_to_have_been_kept(app: Callable[..., Path], nsqd: Server) -> None:
    with working("run", "shop", "--broker", broker(nsqd), cwd=app(SAY)) as worker:
        worker.signal(signal.SIGSTOP)
        time.sleep(1.5)
        worker.signal(signal.SIGCONT)
        worker.wait_for("this process has not run for ")
        assert worker.stop() == 0
    assert not any("are kept" in line for line in worker.err)
