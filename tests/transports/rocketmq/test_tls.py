"""A real RocketMQ that serves nobody in clear: workers speak TLS, and others are told what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.errors import FrameworkError
from framework.testing.certificates import Authority, Pair
from framework.testing.conformance.receiver import Held
from framework.testing.rocketmq import ENFORCING, PROMPT, RocketMQ, real_rocketmq, with_certificate
from framework.testing.servers import ServerMissing
from framework.transports import open_transports
from tests.conftest import missing
from tests.transports.rocketmq.kit import until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("enforcing")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    return Authority(folder).sign("server")  # its own certificate is ca-tests.pem


@pytest.fixture(scope="module")
def enforcing(folder: Path, pair: Pair) -> Iterator[RocketMQ]:
    try:
        made = real_rocketmq(folder, PROMPT, *with_certificate(pair), *sorted(ENFORCING))
    except ServerMissing as error:
        missing(str(error))
        raise
    made.start()
    yield made
    made.kill()


@pytest.mark.parametrize("mode", ["", "&mode=pull"], ids=["by POP", "by PULL"])
def test_a_server_that_enforces_tls_is_served_by_it(enforcing: RocketMQ, folder: Path, mode: str) -> None:
    topic = f"orders{len(mode)}"
    (transport,) = open_transports([f"rocketmq+tls://{enforcing.address}?poll=200ms&tls_ca={folder}/ca-tests.pem{mode}"])
    transport.ensure(topic, ["billing"])
    producer = transport.producer()
    producer.publish(topic, [b"x" * 1_000_000, b"secret"])
    held = Held(lambda receiver: transport.connect(enforcing.name, topic, "billing", receiver))
    held.grant(5)
    until(lambda: len(held.taken) == 2)
    for message in held.taken:
        held.connection.finish(message)
    until(held.balanced)
    held.connection.close()
    until(lambda: held.receiver.closings)
    producer.close()
    transport.close()


def test_whoever_speaks_in_clear_to_it_is_told_that_it_is_not_taken(enforcing: RocketMQ) -> None:
    (transport,) = open_transports([f"rocketmq://{enforcing.address}"])
    with pytest.raises(FrameworkError, match=r"closed it.*rocketmq\+tls://"):
        transport.probe()
    transport.close()
