"""A message whose publisher says that its body is packed, and it is not, on a real RocketMQ: it is given up as one that fails."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from framework.testing.workers import Worker
from framework.transports.rocketmq.wire.codes import Request
from tests.transports.rocketmq.kit import Kit, until
from tests.transports.rocketmq.shop import told_to_stop

pytestmark = [pytest.mark.real, pytest.mark.slow]
PACKED = "1"
"""sysFlag."""


def publish_packed(kit: Kit, body: bytes) -> None:
    same = {"a": "g", "c": "TBW102", "d": "4", "e": "0", "g": "0", "h": "0", "i": "", "m": "false"}
    fields = {**same, "b": kit.topic_there, "f": PACKED}
    with kit.open()._sessions.use(kit.server.broker.address) as session:
        session.ask(Request.SEND_MESSAGE_V2, fields, body)


@pytest.mark.parametrize(("mode", "more"), [
    ("pop", ""), ("pop", ", batch=3, linger=0.1"), ("pull", ""), ("pull", ', slots="process"'),
], ids=["pop", "pop in batches", "pull", "pull in processes"])  # fmt: skip
def test_it_is_a_dead_letter_after_its_last_attempt_and_holds_up_no_other(
    kit: Kit, tmp_path: Path, mode: str, more: str
) -> None:  # fmt: skip
    annotation = "Batch" if "batch" in more else "bytes"
    (tmp_path / "shop.py").write_text(f"""
from framework import Batch, handler
@handler({kit.topic!r}, "billing", max_attempts=2{more})
def bill(given: {annotation}) -> None:
    for body in ([one.body for one in given] if isinstance(given, Batch) else [given]):
        print("got", body, flush=True)
""")
    kit.open(f"&mode={mode}").ensure(kit.topic, ["billing"])
    publish_packed(kit, b"no zlib")
    publish_packed(kit, zlib.compress(b"packed"))
    kit.publish(b"plain")
    url = f"rocketmq://{kit.server.address}?mode={mode}&poll=200ms&lease=60s"
    worker = Worker("run", "shop", "--broker", url, "--poll-interval=1s", "--connect-deadline=60s", cwd=tmp_path)
    try:
        worker.wait_for("dead letter in topic", deadline=60.0)
        worker.wait_until(lambda: sum("got" in line for line in worker.out) >= 2)
        told_to_stop(worker)
    finally:
        worker.process.kill()
        worker.wait()
    assert sorted(line for line in worker.out if line.startswith("got")) == ["got b'packed'", "got b'plain'"]
    kit.topic = f"{kit.topic}.billing.dead"
    held = kit.hold(kit.open(f"&mode={mode}"), "dead")
    until(lambda: held.taken)
    header, _, body = held.taken[0].body.partition(b"\n")
    assert body == b"no zlib"
    letter = json.loads(header)
    assert letter["attempts"] == 2
    assert "cannot be unpacked" in letter["reason"]
    held.connection.finish(held.taken[0])
    until(held.balanced)
    assert sum(kit.open(f"&mode={mode}").backlog(kit.topic.removesuffix(".billing.dead"), "billing").values()) == 0
