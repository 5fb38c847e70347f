"""``workers stats --why``, ``pause``, ``resume`` and ``scale-hint``: on real brokers, and as functions of counts."""

from __future__ import annotations

import io
import json
import re
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from framework.cli.root import run_command
from framework.cli.why import Rates, rates, why
from framework.testing.servers import ROOT, Server
from framework.testing.workers import Worker
from framework.transports.kept import Kept, together
from tests.admin.asking import api, port_of, run, shown


def workers(*arguments: str, code: int = 0) -> str:
    """In this process; its words, on stderr where it fails."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert run_command(arguments) == code, (out.getvalue(), err.getvalue())
    return err.getvalue() if code in (2, 3, 4) else out.getvalue()


def explained(broker: str, *more: str) -> Any:
    lines = workers("stats", "orders", "--why", "--json", "--broker", broker, *more).splitlines()
    return {row["channel"]: row for row in map(json.loads, lines)}


def url(nsqd: Server) -> str:
    return f"nsq://{nsqd.address}?http_port={nsqd.http_port}"


@pytest.mark.real
def test_what_holds_a_channel_up_is_said_and_what_it_has_is_told_apart(nsqd: Server, tmp_path: Path) -> None:
    nsqd.http("/topic/create?topic=orders", b"")
    for channel in ("bill", "idle", "stopped"):
        nsqd.http(f"/channel/create?topic=orders&channel={channel}", b"")
    assert workers("pause", "orders/stopped", "--broker", url(nsqd)) == f"paused orders/stopped on {nsqd.address}\n"
    with run(tmp_path, url(nsqd)) as worker:
        nsqd.http("/mpub?topic=orders", "\n".join(["wait"] * 5).encode())
        nsqd.http("/pub?topic=orders&defer=600000", b"late")
        admin = f"127.0.0.1:{port_of(worker)}"
        shown(
            port_of(worker), "handlers", lambda rows: rows[0]["running"] == 2 and rows[0]["kept"] and rows[0]["kept"]["deferred"]
        )
        found = explained(url(nsqd), "--admin", admin)
        bill = found["bill"]
        assert (bill["waiting"] + bill["in_flight"], bill["deferred"], bill["consumers"]) == (5, 1, 1)
        assert bill["messages"] == 6
        assert bill["why"].startswith("all 2 slots are busy, and nothing has ended in 1.")
        assert bill["oldest_age"] >= 0
        assert (found["idle"]["why"], found["idle"]["consumers"]) == ("no consumer is subscribed", 0)
        assert (found["stopped"]["why"], found["stopped"]["paused"]) == ("paused at the broker: `workers resume` ends it", True)
        nsqd.http("/topic/create?topic=orders.idle.later", b"")
        nsqd.http("/channel/create?topic=orders.idle.later&channel=idle", b"")
        nsqd.http("/mpub?topic=orders.idle.later", b"a\nb")
        assert workers("scale-hint", "orders/idle", "--broker", url(nsqd)) == "7\n", "and what waited elsewhere, and is due"
        assert workers("scale-hint", "orders/bill", "--broker", url(nsqd)) == "5\n"
        assert api(port_of(worker), "/scale?handler=orders/bill") == (200, {"value": 5})
        assert api(port_of(worker), "/scale") == (400, {"error": "say which handler: /scale?handler=topic/channel"})
        workers("ctl", "pause", "--all", "--admin", admin)
        assert explained(url(nsqd), "--admin", admin)["bill"]["why"] == "the worker: paused"
        head, *lines = workers("stats", "--why", "--broker", url(nsqd)).splitlines()
        assert head.split()[:2] == ["TOPIC/CHANNEL", "WAITING"]
        assert len(lines) == 4
        worker.process.kill()
    assert workers("resume", "orders/stopped", "orders", "--broker", url(nsqd)).count("resumed") == 2
    assert not nsqd.channel_stats("orders", "stopped")["paused"]
    assert "is on no node" in workers("pause", "orders/none", "--broker", url(nsqd), code=4)


@pytest.mark.real
def test_what_the_page_shows_works(nsqd: Server, tmp_path: Path) -> None:
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http("/channel/create?topic=orders&channel=billing", b"")
    page = (ROOT / "docs" / "admin.md").read_text().replace("nsq://127.0.0.1:4150", url(nsqd))
    lines = [line.partition("#")[0] for line in re.findall(r"^\$ workers (.*--broker.*)$", page, re.MULTILINE)]
    assert len(lines) == 6
    for line in lines:
        if "--watch" not in line:
            workers(*line.replace("--admin 9464", "--admin 127.0.0.1:1").split())


@pytest.mark.real
def test_more_than_a_limit_is_an_exit_code_for_alerts(nsqd: Server) -> None:
    nsqd.http("/mpub?topic=orders", b"a\nb\nc")
    assert workers("stats", "--fail-above", "3", "--broker", url(nsqd)) == "       3  orders\n"
    assert workers("stats", "--fail-above", "2", "--broker", url(nsqd), code=5) == "       3  orders\n"
    assert workers("stats", "--fail-above", "2", "--why", "--json", "--broker", url(nsqd), code=5)


@pytest.mark.real
def test_watching_shows_rates_until_it_is_interrupted(nsqd: Server, tmp_path: Path) -> None:
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http("/channel/create?topic=orders&channel=bill", b"")
    watching = Worker("stats", "--watch", "0.5", "--json", "--broker", url(nsqd), cwd=tmp_path)
    watching.wait_until(lambda: len(watching.out) > 1)
    nsqd.http("/mpub?topic=orders", "\n".join(["x"] * 50).encode())
    watching.wait_until(lambda: any(json.loads(line)["in_rate"] > 10 for line in watching.out if line))
    assert watching.stop() == 0


@pytest.mark.real
def test_a_tube_is_paused_and_resumed(beanstalkd: Server) -> None:
    from framework.transports import open_transports

    broker = f"beanstalkd://{beanstalkd.address}"
    [transport] = open_transports([broker])
    producer = transport.producer()
    producer.publish("orders", [b"x"])
    producer.close()
    workers("pause", "orders", "--broker", broker)
    [row] = map(json.loads, workers("stats", "orders", "--why", "--json", "--broker", broker).splitlines())
    assert (row["paused"], row["waiting"]) == (True, 1)
    workers("resume", "orders", "--broker", broker)
    [row] = map(json.loads, workers("stats", "orders", "--why", "--json", "--broker", broker).splitlines())
    assert row["paused"] is False
    transport.close()


def test_a_broker_without_a_pause_says_what_to_do() -> None:
    assert "this broker has no pause of its own: pause handlers" in workers("pause", "a", "--broker", "memory://x", code=2)
    assert "names no channel" in workers("scale-hint", "a", "--broker", "memory://x", code=2)


BUSY: dict[str, Any] = {"pause": None, "connected": 1, "processes": 1, "running": 2, "concurrency": 2}
PAUSE = {"by": "backoff", "until": 0.0, "why": "most of its last messages failed", "processes": 1}


@pytest.mark.parametrize(("kept", "speed", "worker", "words"), [
    (Kept(3, paused=True), None, None, "paused at the broker"),
    (Kept(3, consumers=1), None, {**BUSY, "pause": PAUSE}, "the worker: backing off 16m"),
    (Kept(3, consumers=1), None, {**BUSY, "connected": 0}, "the worker has no connection"),
    (Kept(0, consumers=0), None, None, "nothing is there"),
    (Kept(3, consumers=0), None, None, "no consumer is subscribed"),
    (Kept(0, 0, 7, consumers=1), None, None, "all of it is deferred"),
    (Kept(0, 2, consumers=1), Rates(0, 0, 2.0), None, "nothing has ended in 2.0 s"),
    (Kept(0, 2, consumers=1), Rates(0, 0, 2.0), BUSY, "all 2 slots are busy, and nothing has ended in 2.0 s"),
    (Kept(3, 2, consumers=1), Rates(9, 5, 2.0), BUSY, "consumed more slowly than it comes"),
    (Kept(3, 2, consumers=1), Rates(5, 9, 2.0), BUSY, "consumed"),
    (Kept(3), None, None, "not known"),
])  # fmt: skip
def test_the_first_reason_that_explains_it_is_said(kept: Kept, speed: Rates | None, worker: Any, words: str) -> None:
    if worker is not None and worker.get("pause"):
        worker = {**worker, "pause": {**PAUSE, "until": time.time() + 1010}}
    assert why(kept, speed, worker).startswith(words)


def test_rates_are_differences_and_of_several_nodes_sums() -> None:
    speed = rates(Kept(10, came=100), Kept(4, 2, came=150), 2.0)
    assert speed == Rates(25.0, 27.0, 2.0)
    assert rates(Kept(10, came=100), Kept(4, came=3), 2.0) is None, "it was started anew"
    assert rates(Kept(10), Kept(4), 2.0) is None
    both = together({"a": Kept(1, 2, 3, 10, 1, True), "b": Kept(1, 1, 1, None, None)})
    assert both == Kept(2, 3, 4, 10, 1, False)
