"""A real RocketMQ by POP whose clock is set while messages come: they are handled at once, and each for the first time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.testing.conformance.receiver import Held
from framework.testing.rocketmq import RocketMQ, real_rocketmq
from framework.testing.servers import ServerMissing
from tests.clocks import Clock
from tests.conftest import missing
from tests.transports.rocketmq.kit import Kit, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]


@pytest.fixture
def wrong(tmp_path: Path) -> Iterator[tuple[Clock, RocketMQ]]:
    (data := tmp_path / "rocketmq").mkdir()
    try:
        clock, server = Clock(tmp_path), real_rocketmq(data, {})
    except ServerMissing as error:
        missing(str(error))
        raise
    clock.under(server.broker)
    server.start()
    yield clock, server
    server.kill()


@pytest.mark.parametrize("seconds", [-300.0, 300.0, -86400.0])
def test_what_comes_after_the_brokers_clock_was_set_is_taken_at_once(wrong: tuple[Clock, RocketMQ], seconds: float) -> None:
    clock, server = wrong
    kit = Kit(server)
    held = kit.hold(kit.open("&lease=5s"), grant=40)
    kit.publish(*(b"before %d" % number for number in range(20)))
    finish_all(held, 20)
    clock.ahead(seconds)
    for n in range(3):
        kit.publish(*(b"after %d %d" % (n, number) for number in range(20)))
        finish_all(held, 40 + 20 * n)
    assert {message.attempts for message in held.taken} == {1}
    kit.close()


def finish_all(held: Held, count: int) -> None:
    until(lambda: len(held.taken) == count, 15.0)
    for message in list(held.connection.in_flight):
        held.connection.finish(message)
    until(held.balanced)
