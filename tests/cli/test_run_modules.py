"""Which code ``workers run`` runs: modules of every kind, also wrong ones, and what is imported or forked beside them."""

from __future__ import annotations

import json
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


def test_it_must_be_the_first_argument_to_be_patched_in_time(app: Callable[..., Path]) -> None:
    folder = app(SAY)
    script = "from framework.cli.root import run_command; raise SystemExit(run_command(['run', 'shop']))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "must be the first argument" in done.stderr


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
