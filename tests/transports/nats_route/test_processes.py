"""``workers run``, ``check`` and ``publish`` on a route, in processes of their own, with NATS's own client on the other side."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest

from framework.testing.workers import Worker, call

from .conftest import VERSIONS

pytestmark = pytest.mark.real

SHOP = """
from framework import Message, handler, publish

@handler("orders.neu", "billing")
def bill(message: Message) -> None:
    publish("invoices", "für ".encode() + message.body, headers={**message.headers, "Stadt": "Köln 話"})
"""
FAILING = """
from framework import Message, Middleware, handler

class Heard(Middleware):
    def after(self, message, outcome):
        print("heard", outcome, flush=True)

@handler("orders.neu", "billing", middleware=[Heard()])
def bill(message: Message) -> None:
    raise ValueError(message)
"""
CAREFUL = """
from framework import handler

@handler("orders", "billing", max_attempts=3)
def bill(body: bytes) -> None: ...
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "hello.txt").write_text("hello\n")
    (tmp_path / "careful.py").write_text(CAREFUL)
    (tmp_path / "knowing.py").write_text(CAREFUL.replace("max_attempts=3", "max_attempts=3, at_most_once=True"))
    return tmp_path


def ask_by_nats_py(address: str, *bodies: bytes) -> list[Any]:
    """What comes back on ``invoices`` for orders that it publishes."""

    async def work() -> list[Any]:
        client = await nats.connect(f"nats://{address}", allow_reconnect=False)
        found: list[Any] = []
        subscription = await client.subscribe("invoices")
        for body in bodies:
            await client.publish("orders.neu", body, headers={"Customer": "42"})
            found.append(await subscription.next_msg(timeout=10))
        await client.close()
        return found

    return asyncio.run(work())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_worker_handles_what_nats_py_publishes_and_nats_py_reads_what_the_worker_publishes(make_cluster, shop, version):
    one = make_cluster(version)
    worker = Worker("run", "shop", "--broker", one.url(), cwd=shop)
    try:
        worker.wait_for("ready")
        found = ask_by_nats_py(one.servers[0].address, "Zoë".encode(), b"\x00\xff\r\n")
    finally:
        assert worker.stop() == 0
    assert [message.data for message in found] == ["für Zoë".encode(), b"f\xc3\xbcr \x00\xff\r\n"]
    assert [message.headers for message in found] == [{"Customer": "42", "Stadt": "Köln 話"}] * 2


@pytest.fixture
def one(make_cluster):
    """Of the newest version: a worker and a command line meet no other difference than the transport alone does."""
    return make_cluster("2.15")


def test_workers_publish_reaches_a_running_worker_and_says_when_nobody_listens(one, shop):
    worker = Worker("run", "knowing", "--broker", one.url(), cwd=shop)
    try:
        worker.wait_for("ready")
        done = call("publish", "orders", "hello.txt", "--broker", one.url(), cwd=shop)
        assert done.returncode == 0, done.stderr
        done = call("publish", "nobody", "hello.txt", "--broker", one.url(), "--connect-deadline", "1s", cwd=shop)
        assert done.returncode == 3, done.stderr
        assert "nobody has subscribed to nobody" in done.stderr
    finally:
        assert worker.stop() == 0
    assert any("finished=1" in line for line in worker.err)


def test_check_says_that_the_port_is_fully_trusted_and_what_a_handler_asks_for_in_vain(one, shop):
    done = call("check", "careful", "--broker", one.url(), cwd=shop)
    assert done.returncode == 2
    assert "max_attempts=3 cannot be kept" in done.stdout
    assert "or say at_most_once=True" in done.stdout
    done = call("check", "knowing", "--broker", one.url(), cwd=shop)
    assert done.returncode == 0, done.stdout
    assert "note  handler  knowing.bill (knowing.py:4): a route port means full trust" in done.stdout


def test_run_refuses_a_handler_whose_retries_nobody_keeps(one, shop):
    done = call("run", "careful", "--broker", one.url(), cwd=shop)
    assert done.returncode == 2
    assert "max_attempts=3 cannot be kept" in done.stderr


def test_check_says_why_a_server_does_not_take_us_without_the_password(make_cluster, shop):
    cluster = make_cluster()
    cluster.add(cluster="name: C1\nauthorization { user: ru, password: hush }")
    done = call("check", "shop", "--broker", cluster.url(login="ru:hushhush@"), cwd=shop)
    assert done.returncode == 3
    assert "are missing, or not those of cluster { authorization }" in done.stdout
    assert "hush" not in done.stdout + done.stderr


def test_a_ledger_has_what_was_lost_and_middleware_hears_that_it_is(one, shop):
    (shop / "failing.py").write_text(FAILING)
    worker = Worker("run", "failing", "--broker", one.url(), "--ledger", "ledger.json", cwd=shop)
    try:
        worker.wait_for("ready")
        assert call("publish", "orders.neu", "hello.txt", "--broker", one.url(), cwd=shop).returncode == 0
        worker.wait_for("ValueError")
        worker.wait_for("heard lost")
    finally:
        worker.stop()
    ledger = json.loads((shop / "ledger.json").read_text())
    assert '"lost": 1' in json.dumps(ledger)
