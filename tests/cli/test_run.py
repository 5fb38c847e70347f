"""``workers run`` as a process: it starts, works, stops as promised, and refuses what cannot work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from framework import Publisher
from framework.testing import servers
from framework.testing.servers import Server
from framework.testing.workers import call, environment, working
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


def test_it_patches_before_app_code_is_imported(app: Callable[..., Path], nsqd: Server) -> None:
    folder = app("""
        from socket import create_connection
        from time import sleep
        from gevent import monkey
        assert all(map(monkey.is_module_patched, ["socket", "time", "threading", "subprocess", "ssl"]))

        @handler("orders", "say")
        def say(text: str) -> None: ...
    """)
    with working("run", "shop", "--broker", broker(nsqd), cwd=folder) as worker:
        assert worker.stop() == 0
    assert not [line for line in worker.err if "imported before" in line]


def test_a_module_that_was_imported_too_early_is_named(app: Callable[..., Path], nsqd: Server) -> None:
    folder = app(SAY)
    app("from time import sleep", "early")
    script = "import early, sys; sys.argv = ['workers', *sys.argv[1:]]; from framework.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "run", "shop", "--broker", broker(nsqd)],
        cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    with process.stderr as lines:
        said = []
        for line in lines:
            said.append(line)
            if "ready" in line:
                process.terminate()
    assert process.wait(20) == 0
    assert [line for line in said if "imported before gevent could patch it" in line and "early (sleep)" in line]


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


MODULES = {
    "raises": "raise RuntimeError('no database')",
    "needs_more": "import nothing_like_this",
    "misspelt": "def (",
    "leaves": "raise SystemExit(0)",
    "times_out": "import gevent\nraise gevent.Timeout(3)",
    "empty": "",
    "unknown_option": "@handler('a', 'b', max_retires=3)\ndef f(m): ...",
    "bad_topic": "@handler('a b', 'b')\ndef f(m): ...",
    "twice": "@handler('a', 'b')\ndef f(m): ...\n@handler('a', 'b')\ndef g(m): ...",
    "no_type": "@handler('a', 'b')\ndef f(m: complex): ...",
    "good": "@handler('a', 'b')\ndef f(m): ...",
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["raises"], "module 'raises' cannot be imported: RuntimeError: no database (raises.py:2)"),
        (["needs_more"], "module 'needs_more' cannot be imported: ModuleNotFoundError: No module named 'nothing_like_this'"),
        (["misspelt"], "module 'misspelt' cannot be imported: invalid syntax (misspelt.py, line 2)"),
        (["leaves"], "module 'leaves' cannot be imported: SystemExit: 0 (leaves.py:2)"),
        (["times_out"], "module 'times_out' cannot be imported: Timeout: 3 seconds (times_out.py:3)"),
        (["empty"], "empty: no function there is decorated with @handler"),
        (["unknown_option"], "unknown_option.f (unknown_option.py:2): unknown option 'max_retires': did you mean 'max_attempts'"),
        (["bad_topic"], "bad_topic.f (bad_topic.py:2): topic name 'a b' is not valid"),
        (["twice"], "twice.g (twice.py:4): a/b has a handler already, twice.f (twice.py:2)"),
        (["no_type"], "cannot decode a body to complex: annotate the argument with"),
        (["god"], "there is no module 'god' in "),
        (["good.more"], "good.more"),
        (["good.py"], "'good.py' is a path: give the module's name, 'good'"),
        (["./good.py"], "'./good.py' is a path: give the module's name, 'good'"),
        (["good", ""], "is not a module's name"),
        (["good", "..good"], "is not a module's name"),
        ([], "Missing argument 'MODULE...' (see `workers run --help`)"),
        (["good", "--brokr", "x"], "No such option '--brokr'"),
        (["good", "--broker", "amqp://user:secret@host"], "the scheme must be one of nsq://"),
        (["good", "--broker", "host:4150"], "the scheme must be one of nsq://"),
        (["good", "--broker", "nsq://host:port"], "nsq://host:port"),
        (["good", "--broker", "nsq://user:secret@host:4150"], "NSQ has no user and password"),
        (["good", "--drain", "soon"], "--drain: 'soon' is not a duration"),
        (["good", "--drain", "-1"], "--drain: '-1' is not a duration"),
        (["good", "--log-level", "loud"], "--log-level: 'loud' is not a log level"),
        (["good", "--broker", ""], "--broker: '' is not a URL: write nsq://host:4150"),
        (["good", "--config", "no.yaml"], "--config no.yaml: No such file"),
        (["good", "--config", "bad.yaml"], "bad.yaml: unknown setting 'drian': did you mean 'drain'?"),
        (["good", "--ledger", "no/such/folder.json"], "--ledger no/such/folder.json cannot be written"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_2_and_starts_nothing(arguments: list[str], words: str, tmp_path: Path) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text("from framework import *\n" + text)
    (tmp_path / "bad.yaml").write_text("drian: 5s\n")
    before = set(tmp_path.rglob("*"))
    brokers = [] if "--broker" in arguments else ["--broker", f"nsq://127.0.0.1:{servers.free_port()}"]
    done = call("run", *arguments, *brokers, cwd=tmp_path, env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("workers: ")
    assert "secret" not in done.stderr + done.stdout
    assert done.stdout == ""
    assert set(tmp_path.rglob("*")) == before


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


def test_it_must_be_the_first_argument_to_be_patched_in_time(app: Callable[..., Path]) -> None:
    folder = app(SAY)
    script = "from framework.cli.root import run_command; raise SystemExit(run_command(['run', 'shop']))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "must be the first argument" in done.stderr


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


@pytest.mark.parametrize(("kind", "scheme"), [("nsqd", "nsq"), ("beanstalkd", "beanstalkd")])
def test_a_process_that_a_handler_forks_takes_none_of_the_workers_messages(
    app: Callable[..., Path], request: pytest.FixtureRequest, tmp_path: Path, kind: str, scheme: str
) -> None:
    url = f"{scheme}://{request.getfixturevalue(kind).address}"
    publisher = Publisher(url)
    folder = app("""
        import multiprocessing, os, time

        def wait() -> None:
            for _ in range(30):
                time.sleep(0.02)

        @handler("orders", "say", concurrency=5)
        def say(text: str) -> None:
            if int(text) % 20 == 0:
                child = multiprocessing.get_context("fork").Process(target=wait)
                child.start()
                child.join()
            with open("handled", "a") as file:
                file.write(f"{text} {os.getpid()}\\n")
    """)
    handled = tmp_path / "handled"
    publisher.publish_many("orders", [b"%d" % at for at in range(100)])  # they come together, and wait beside the one that forks
    with working("run", "shop", "--broker", url, cwd=folder) as worker:
        worker.wait_until(lambda: handled.exists() and len(handled.read_text().splitlines()) >= 100)
        for start in range(100, 200, 5):
            publisher.publish_many("orders", [b"%d" % at for at in range(start, start + 5)])
            time.sleep(0.02)
        worker.wait_until(lambda: len(handled.read_text().splitlines()) >= 200)
        assert worker.stop() == 0
    publisher.close()
    rows = [line.split() for line in handled.read_text().splitlines()]
    assert sorted(int(text) for text, _ in rows) == list(range(200))
    assert {pid for _, pid in rows} == {str(worker.process.pid)}


def test_a_process_that_a_handler_forks_takes_none_of_what_slot_processes_answer(app: Callable[..., Path], nsqd: Server) -> None:
    folder = app("""
        import os, time

        @handler("orders", "say")
        def say(text: str) -> None:
            if os.fork() == 0:
                time.sleep(1.5)
                os._exit(0)

        @handler("sums", "add", slots="process", concurrency=1, timeout=30)
        def add(text: str) -> None:
            time.sleep(0.001)
    """)
    with working("run", "shop", "--broker", broker(nsqd), "--ledger", "ledger.json", cwd=folder) as worker:
        put(nsqd, *map(str, range(300)), topic="sums")
        for _ in range(3):
            put(nsqd, "fork")
            time.sleep(0.1)

        def left() -> int:
            stats = nsqd.channel_stats("sums", "add")
            return int(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"])

        worker.wait_until(lambda: left() == 0, deadline=15)
        assert worker.stop() == 0
    assert adds_up(folder / "ledger.json", "sums/add") == dict.fromkeys(["received", "finished"], 300) | dict.fromkeys(
        ["requeued", "dead", "lease_lost"], 0
    )


def test_the_handlers_of_a_module_that_is_only_imported_are_not_run_and_are_named(app: Callable[..., Path], nsqd: Server) -> None:
    app(SAY, "first")
    folder = app("""
        import first
        @handler("again", "say")
        def again(text: str) -> None:
            first.say(text)
    """)
    checked = call("check", "shop", "--broker", broker(nsqd), cwd=folder)
    assert "note  handler  imported along, and not run: orders/say (first)" in checked.stdout
    put(nsqd, "1")
    put(nsqd, "2", topic="again")
    with working("run", "shop", "--broker", broker(nsqd), "--ledger", "ledger.json", cwd=folder) as worker:
        assert sum("imported along, and not run: orders/say (first)" in line for line in worker.err) == 1
        worker.wait_for("got 2")
        assert worker.stop() == 0
    assert numbers(worker) == {2}
    assert list(json.loads((folder / "ledger.json").read_text())) == ["again/say"]
    assert nsqd.http("/stats?format=json&topic=orders")["topics"][0]["channels"] == []


def test_after_a_suspension_nothing_is_said_to_have_been_kept(app: Callable[..., Path], nsqd: Server) -> None:
    with working("run", "shop", "--broker", broker(nsqd), cwd=app(SAY)) as worker:
        worker.signal(signal.SIGSTOP)
        time.sleep(1.5)
        worker.signal(signal.SIGCONT)
        worker.wait_for("this process has not run for ")
        assert worker.stop() == 0
    assert not any("are kept" in line for line in worker.err)
