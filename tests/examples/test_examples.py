"""Every example does what its docstring says, run as a reader would run it: `workers run`, `workers publish`, Ctrl-C."""

from __future__ import annotations

import ast
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.testing.workers import Worker, call, working

ROOT = Path(__file__).parents[2]

#: Example -> what is published to which topic, and the lines that must be printed then.
EXAMPLES: dict[str, tuple[list[tuple[str, str]], set[str]]] = {
    "hello": ([("greetings", "world\nmoon\n")], {"hello, world", "hello, moon"}),
    "retries": (
        [("orders", '{"id": 7, "card": "4111"}\n{"id": 8, "card": ""}\nnonsense\n')],
        {
            "charged order 7",
            'audited at attempt 2: {"id": 7, "card": "4111"}',
            'audited at attempt 2: {"id": 8, "card": ""}',
            "audited at attempt 2: nonsense",
        },
    ),
    "batch": ([("readings", "3\n4\nmany\n")], {"sum 7 of 3 readings, 1 of them bad"}),
    "publish_from_handler": (
        [("purchases", '{"id": 7, "items": ["tea", "cups"]}\n')],
        {"shipped tea of purchase 7", "shipped cups of purchase 7", "invoice for 2 parcels of purchase 7"},
    ),
    "payload_types": (
        [("products", '{"name": "tea", "price": 3}\n')],
        {
            "Message: 27 bytes, attempt 1",
            """bytes: b'{"name": "tea", "price": 3}'""",
            'str: {"name": "tea", "price": 3}',
            "dict: ['name', 'price']",
            "dataclass: tea at 3.0",
            "Struct: 3.0",
            "Batch: 3.0 for 1",
        },
    ),
    "timing": (
        [("parcels", "tea\ncups\nnothing\n")],
        {"took … s", "parcels/packing tea: finished", "parcels/packing cups: finished", "parcels/packing nothing: dead"},
    ),
    "session": (
        [("deliveries", '{"item": "tea", "count": 3}\n{"item": "tea", "count": -9}\n{"item": "tea", "count": 4}\n')],
        {"3 tea in stock", "7 tea in stock"},
    ),
    "seen": (
        [("payments", '{"payment": 7}\n{"payment": 7}\n{"payment": 8}\n')],
        {"charged payment 7", "charged payment 8"},
    ),
}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The settings of a worker with an embedded nsqd of its own."""
    return {
        "WORKERS_DATA_PATH": str(tmp_path / "nsqd"),
        "WORKERS_NSQD_TCP_ADDRESS": "127.0.0.1:0",
        "WORKERS_NSQD_HTTP_ADDRESS": "127.0.0.1:0",
        "WORKERS_LEDGER": str(tmp_path / "ledger.json"),
    }


def publish(topic: str, lines: str, env: dict[str, str]) -> None:
    done = call("publish", topic, cwd=ROOT, env=env, stdin=lines.encode())
    assert done.returncode == 0, done.stderr


def ledgers(env: dict[str, str]) -> Iterator[dict[str, int]]:
    for counts in json.loads(Path(env["WORKERS_LEDGER"]).read_text()).values():
        assert counts["received"] == counts["finished"] + counts["requeued"] + counts["dead"] + counts["lease_lost"]
        yield counts


def stopped_cleanly(worker: Worker, number: signal.Signals, env: dict[str, str]) -> None:
    worker.signal(number)
    assert worker.wait() == 0, worker.err
    assert sum(counts["finished"] for counts in ledgers(env)) > 0


def printed(worker: Worker) -> set[str]:
    """What it has printed, without durations; the calls of a batch handler, which may be several on a busy machine, added up."""
    batches = [re.fullmatch(r"sum (\d+) of (\d+) readings, (\d+) of them bad", line) for line in worker.out]
    if not any(batches):
        return {re.sub(r"\d+\.\d{3} s$", "… s", line) for line in worker.out}
    total, readings, bad = (sum(int(batch[n]) for batch in batches if batch) for n in (1, 2, 3))
    return {f"sum {total} of {readings} readings, {bad} of them bad"} if readings == 3 else set()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_what_it_says(name: str, env: dict[str, str]) -> None:
    published, expected = EXAMPLES[name]
    with working("run", f"examples.{name}", cwd=ROOT, env=env) as worker:
        for topic, lines in published:
            publish(topic, lines, env)
        worker.wait_until(lambda: len(printed(worker)) >= len(expected))
        stopped_cleanly(worker, signal.SIGINT, env)
    assert printed(worker) == expected


def test_what_was_seen_is_skipped_and_finished(env: dict[str, str]) -> None:
    with working("run", "examples.seen", cwd=ROOT, env=env) as worker:
        publish("payments", '{"payment": 7}\n{"payment": 7}\n{"payment": 8}\n', env)
        worker.wait_for("charged payment 8")
        publish("payments", '{"payment": 8}\n{"payment": 9}\n', env)
        worker.wait_for("charged payment 9")
        stopped_cleanly(worker, signal.SIGTERM, env)
    assert worker.out == ["charged payment 7", "charged payment 8", "charged payment 9"]
    assert next(ledgers(env))["finished"] == 5


def test_what_retries_cannot_handle_is_a_dead_letter_with_the_reason(env: dict[str, str]) -> None:
    with working("run", "examples.retries", cwd=ROOT, env=env) as worker:
        publish("orders", '{"id": 8, "card": ""}\nnonsense\n', env)
        worker.wait_until(lambda: sum("dead letter in topic" in line for line in worker.err) == 2)
        dead = call("dead", "list", "orders/billing", cwd=ROOT, env=env)
        assert worker.stop() == 0
    assert dead.returncode == 0
    assert "order 8 has no card" in dead.stdout
    assert "the body does not decode to Order" in dead.stdout
    assert next(counts["dead"] for counts in ledgers(env) if counts["dead"]) == 2


def test_what_was_published_while_no_worker_ran_is_handled_by_the_next(env: dict[str, str]) -> None:
    with working("run", "examples.hello", cwd=ROOT, env=env) as worker:
        publish("greetings", "world\n", env)
        worker.wait_for("hello, world")
        publish("parcels", '{"purchase": 7, "item": "tea"}\n', env)
        assert worker.stop() == 0
    with working("run", "examples.publish_from_handler", cwd=ROOT, env=env) as worker:
        worker.wait_for("shipped tea of purchase 7")
        assert worker.stop() == 0


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.py")), ids=lambda file: file.stem)
def test_every_example_is_tested_and_says_how_to_run_it(file: Path) -> None:
    assert file.stem in EXAMPLES
    assert f"workers run examples.{file.stem}\n" in (ast.get_docstring(ast.parse(file.read_text())) or "")
