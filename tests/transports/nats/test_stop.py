"""A worker that is stopped while its server is away: what it has handled is settled when the server is there again."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import pytest

from framework.testing.workers import working

from .conftest import Kit, until

pytestmark = [pytest.mark.real, pytest.mark.slow]

SHOP = """
import time
from framework import handler

@handler("orders", "billing")
def bill(message: bytes) -> None:
    time.sleep(1.5)
"""


@pytest.mark.parametrize("back", [True, False], ids=["the server comes back", "it does not"])
def test_what_was_handled_without_a_server_is_settled_within_the_drain(make_kit, tmp_path: Path, back: bool):
    kit: Kit = make_kit()
    (tmp_path / "shop.py").write_text(SHOP)
    url, drain = f"nats://{kit.server.address}?ack_wait=20s", "15s" if back else "4s"
    with working("run", "shop", "--broker", url, "--drain", drain, "--ledger", "ledger", cwd=tmp_path) as worker:
        worker.wait_for("subscribed to")
        with closing(kit.open().producer()) as producer:
            producer.publish("orders", [b"x"])
        until(lambda: kit.api.consumer("orders", "billing").num_ack_pending)
        kit.server.stop()
        worker.process.terminate()
        began = time.monotonic()
        if back:
            time.sleep(5.0)
            kit.server.start()
        assert worker.wait() == 0
    assert time.monotonic() - began < 12.0
    ledger = json.loads((tmp_path / "ledger").read_text())["orders/billing"]
    assert (ledger["finished"], ledger["lease_lost"]) == ((1, 0) if back else (0, 1))
    assert any("messages that were handled come again" in line for line in worker.err) is not back


@pytest.mark.parametrize("back", [True, False], ids=["it is heard again", "it is not"])
def test_what_was_handled_while_the_network_is_gone_without_a_word_is_settled_within_the_drain(
    make_kit, start_proxy, tmp_path: Path, back: bool
):
    kit: Kit = make_kit()
    proxy = start_proxy(kit.server.address)
    (tmp_path / "shop.py").write_text(SHOP)
    url, drain = f"nats://{proxy.address}?ack_wait=20s", "15s" if back else "4s"
    with working("run", "shop", "--broker", url, "--drain", drain, "--ledger", "ledger", cwd=tmp_path) as worker:
        worker.wait_for("subscribed to")
        with closing(kit.open().producer()) as producer:
            producer.publish("orders", [b"x"])
        until(lambda: kit.api.consumer("orders", "billing").num_ack_pending)
        worker.process.terminate()
        proxy.to_server.swallow()
        if back:
            time.sleep(5.0)
            proxy.restore()
        assert worker.wait() == 0
    ledger = json.loads((tmp_path / "ledger").read_text())["orders/billing"]
    assert (ledger["finished"], ledger["lease_lost"]) == ((1, 0) if back else (0, 1))
    assert bool(kit.api.consumer("orders", "billing").num_ack_pending) is not back
    assert any("messages that were handled come again" in line for line in worker.err) is not back
