"""What takes minutes on a real RocketMQ: a handler that computes for half a minute, and connections that say nothing for four."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gevent
import pytest

from tests.transports.rocketmq.kit import Kit, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]


def test_a_message_is_kept_while_its_handler_computes_for_half_a_minute(kit: Kit, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    (tmp_path / "shop.py").write_text(f"""
import time
from framework import Message, handler
@handler({kit.topic!r}, "billing", timeout=60, concurrency=1)
def bill(message: Message) -> None:
    with open({str(journal)!r}, "a") as file:
        file.write(f"began {{message.attempts}}\\n")
    until = time.monotonic() + 30
    while time.monotonic() < until:
        pass
    with open({str(journal)!r}, "a") as file:
        file.write("ended\\n")
""")
    url = f"rocketmq://{kit.server.address}?poll=200ms&lease=5s"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    run = [sys.executable, "-m", "framework.cli", "run", "shop", "--broker", url]
    kit.open().ensure(kit.topic, ["billing"])
    kit.publish(b"heavy")
    worker = subprocess.Popen(run, env=environment, cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        until(journal.exists, 30.0)
        rival = kit.hold(kit.open("&lease=5s"))
        until(lambda: "ended" in journal.read_text(), 60.0)
        gevent.sleep(8.0)
        worker.terminate()
        _, log = worker.communicate(timeout=30)
    finally:
        worker.kill()
    assert (journal.read_text(), rival.taken, worker.returncode) == ("began 1\nended\n", [], 0), log.decode()


@pytest.mark.timeout(600)
def test_connections_that_say_nothing_are_not_closed_by_their_server_after_two_minutes(kit: Kit) -> None:
    by_pop, by_pull = kit.hold(kit.open()), kit.hold(kit.open("&mode=pull"))
    transport = kit.open()
    producer = transport.producer()
    producer.publish(kit.topic, [b"before"])
    for held in (by_pop, by_pull):
        until(lambda held=held: held.taken)  # type: ignore[misc]
        held.connection.finish(held.taken[0])
        held.grant(0)
    link = producer._publishing.here()._link
    gevent.sleep(250.0)
    assert [held.receiver.closings for held in (by_pop, by_pull)] == [0, 0]
    assert link.error is None
    producer.publish(kit.topic, [b"after"], timeout=1.0)
    assert producer._publishing.here()._link is link
    for held in (by_pop, by_pull):
        held.grant(10)
        until(lambda held=held: len(held.taken) == 2)  # type: ignore[misc]
        held.connection.finish(held.taken[1])
    producer.close()
