"""What is lost where each message comes once: with a killed worker what it had, with a killed server what was on the wire."""

from __future__ import annotations

from pathlib import Path

import gevent
import pytest

from framework.message import Message
from framework.testing.workers import Worker as Process

from .conftest import routed, until
from .workers import Worker

pytestmark = [pytest.mark.real, pytest.mark.slow]

SLOW = """
import gevent
from framework import Message, handler

@handler("orders", "billing", concurrency=5)
def bill(message: Message) -> None:
    with open("started", "ab") as file:
        file.write(message.body + b"\\n")
    gevent.sleep(0.05)
    with open("finished", "ab") as file:
        file.write(message.body + b"\\n")
"""


def lines_of(file: Path) -> set[bytes]:
    return set(file.read_bytes().split(b"\n")[:-1]) if file.exists() else set()


def test_with_a_killed_worker_only_what_it_had_is_lost_and_the_others_get_the_rest(one, tmp_path: Path):
    (tmp_path / "slow.py").write_text(SLOW)
    seen: list[bytes] = []
    other = Worker(one.open(), lambda message: seen.append(message.body))
    process = Process("run", "slow", "--broker", one.url(), cwd=tmp_path)
    client = one.client()
    sent = 0
    try:
        process.wait_for("ready")
        while len(lines_of(tmp_path / "started")) < 20:
            client.publish("orders", *[b"%d" % number for number in range(sent, sent + 10)])
            sent += 10
            gevent.sleep(0.01)
    finally:
        process.process.kill()
        process.process.wait()
    client.told()
    gevent.sleep(0.2)
    before = len(seen)
    client.publish("orders", *[b"%d" % number for number in range(sent, sent + 100)])
    until(lambda: len(seen) == before + 100)
    handled = set(seen) | lines_of(tmp_path / "finished")
    lost = {b"%d" % number for number in range(sent + 100)} - handled
    assert lost <= {b"%d" % number for number in range(sent)}
    assert lost >= lines_of(tmp_path / "started") - lines_of(tmp_path / "finished")
    assert len(handled) + len(lost) == sent + 100
    assert other.stop().lost == 0


def test_a_server_that_is_killed_takes_only_what_it_had_not_sent(make_cluster):
    cluster = make_cluster("2.15", "2.9")
    seen: list[bytes] = []

    def handle(message: Message) -> None:
        gevent.sleep(0.002)
        seen.append(message.body)

    worker = Worker(cluster.open(), handle)
    for round_ in range(5):
        doomed = round_ % 2
        client = cluster.client(doomed)
        bodies = [b"%d-%d" % (round_, number) for number in range(200)]
        client.publish("orders", *bodies)
        until(lambda: worker.ledger.received > 200 * round_)  # noqa: B023
        gevent.sleep(0.05)
        cluster.servers[doomed].kill()
        until(lambda: len(seen) == 200 * (round_ + 1))  # noqa: B023
        cluster.servers[doomed].start()
        until(lambda: len(routed(worker.transport)) == 2)
    assert (worker.ledger.received, worker.stop().lost) == (1000, 0)
