"""A real RocketMQ that serves nobody in clear: workers speak TLS, and others are told what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.errors import FrameworkError
from framework.testing.certificates import Authority, Pair
from framework.testing.conformance.receiver import Held
from framework.testing.rocketmq import ENFORCING, PROMPT, RocketMQ, asking_for, with_certificate
from framework.transports import open_transports
from tests.transports.rocketmq.kit import started, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("enforcing")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    return Authority(folder).sign("server")  # its own certificate is ca-tests.pem


@pytest.fixture(scope="module")
def enforcing(folder: Path, pair: Pair) -> Iterator[RocketMQ]:
    yield from started(folder, PROMPT, *with_certificate(pair), *sorted(ENFORCING))


@pytest.mark.parametrize("mode", ["", "&mode=pull"], ids=["by POP", "by PULL"])
def test_a_server_that_enforces_tls_is_served_by_it(enforcing: RocketMQ, folder: Path, mode: str) -> None:
    comes_and_goes(enforcing, f"tls_ca={folder}/ca-tests.pem{mode}", f"orders{len(mode)}")


def comes_and_goes(server: RocketMQ, options: str, topic: str) -> None:
    (transport,) = open_transports([f"rocketmq+tls://{server.address}?poll=200ms&{options}"])
    transport.ensure(topic, ["billing"])
    producer = transport.producer()
    producer.publish(topic, [b"x" * 1_000_000, b"secret"])
    held = Held(lambda receiver: transport.connect(server.name, topic, "billing", receiver))
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


# --- certificates of clients -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def known_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("known")


@pytest.fixture(scope="module")
def for_known_clients(known_folder: Path) -> Iterator[RocketMQ]:
    authority = Authority(known_folder)
    pair = authority.sign("server")
    authority.sign("worker")
    flags = [*with_certificate(pair), *sorted(ENFORCING), *asking_for(pair, authority.pair)]
    yield from started(known_folder, PROMPT, *flags, shown=pair)


@pytest.mark.parametrize("mode", ["", "&mode=pull"], ids=["by POP", "by PULL"])
def test_a_server_that_asks_for_a_certificate_is_shown_it(for_known_clients: RocketMQ, known_folder: Path, mode: str) -> None:
    shown = f"tls_ca={known_folder}/ca-tests.pem&tls_cert={known_folder}/worker.pem&tls_key={known_folder}/worker.key"
    comes_and_goes(for_known_clients, shown + mode, f"known{len(mode)}")


@pytest.mark.parametrize("other", ["", "stranger"], ids=["none", "another authority's"])
def test_whoever_shows_it_nothing_that_it_knows_is_told_so(for_known_clients: RocketMQ, known_folder: Path, other: str) -> None:
    shown = f"tls_ca={known_folder}/ca-tests.pem"
    if other:
        pair = Authority(known_folder, other).sign("strange worker")
        shown += f"&tls_cert={pair.cert}&tls_key={pair.key}"
    (transport,) = open_transports([f"rocketmq+tls://{for_known_clients.address}?{shown}"])
    with pytest.raises(FrameworkError, match=r"does not take the certificate .*tls_cert= and tls_key= name one"):
        transport.probe()
    transport.close()
