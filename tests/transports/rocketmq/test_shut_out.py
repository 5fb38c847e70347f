"""A RocketMQ that rejects this client is named at once, and not waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework import Publisher, PublishError
from framework.errors import BrokerRefuses, BrokerUnreachable
from framework.testing.servers import free_port
from framework.testing.workers import call
from framework.transports import open_transports
from tests.cli.test_shut_out import APP, ends_at_once
from tests.transports.rocketmq.kit import Kit

pytestmark = [pytest.mark.real, pytest.mark.slow]
WORDS = "not trusted: "


@pytest.mark.parametrize("verb", [["run", "shop"], ["check", "shop"], ["publish", "orders"]], ids=lambda verb: verb[0])
def test_a_certificate_that_is_not_trusted_ends_each_verb_at_once(kit: Kit, tmp_path: Path, verb: list[str]) -> None:
    (tmp_path / "shop.py").write_text(APP)
    done = ends_at_once(verb, f"rocketmq+tls://{kit.server.address}", tmp_path)
    said = done.stdout if verb[0] == "check" else done.stderr.splitlines()[-1]
    assert kit.server.address in said
    assert WORDS in said


def test_the_address_of_a_broker_in_place_of_a_name_servers_ends_a_worker_at_once(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    done = call("run", "shop", "--broker", f"rocketmq://{kit.server.broker.address}", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"workers: RocketMQ at {kit.server.broker.address} is no name server")


def test_nor_does_a_publish_wait(kit: Kit) -> None:
    publisher = Publisher(f"rocketmq+tls://{kit.server.address}", timeout=600.0)
    with pytest.raises(PublishError, match=WORDS) as refused:
        publisher.publish("orders", b"x")
    assert refused.value.stored is False
    publisher.close()


def test_one_name_server_that_is_away_may_be_waited_for(kit: Kit) -> None:
    away = f"127.0.0.1:{free_port()}"
    (transport,) = open_transports([f"rocketmq+tls://{kit.server.address},{away}"])
    with pytest.raises(BrokerUnreachable) as failed:
        transport.probe()
    assert not isinstance(failed.value, BrokerRefuses)
    transport.close()
