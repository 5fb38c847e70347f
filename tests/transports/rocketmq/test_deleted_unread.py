"""A real RocketMQ that deletes the oldest files of its log, read or not, as it does where they are too old, or its disk is more
than 85 % full: what it still has is handled, and what comes then."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from framework.testing.rocketmq import PROMPT
from framework.transports.rocketmq.wire.codes import Request
from tests.transports.rocketmq.kit import Kit, started, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length, pytest.mark.timeout(400)]
MANY, NEW = 3000, 400
EVERY_HOUR = ";".join(map(str, range(24)))
SETTINGS = {"mappedFileSizeCommitLog": str(1024 * 1024), "fileReservedTime": "0", "deleteWhen": EVERY_HOUR}
"""It deletes all files but the last, a minute after its start and every ten seconds then."""
_PLACES = re.compile(rb'"maxOffset":(\d+),"minOffset":(\d+)')


@pytest.fixture(params=["pop", "kv", "pull"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kit(mode: str, tmp_path: Path) -> Iterator[Kit]:
    for one in started(tmp_path, SETTINGS | (PROMPT if mode == "kv" else {})):
        made = Kit(one)
        yield made
        made.close()


def test_what_it_still_has_is_handled_and_so_is_what_comes_then(mode: str, kit: Kit) -> None:
    held = kit.hold(kit.open(f"&mode={'pull' if mode == 'pull' else 'pop'}&lease=10s"), grant=20)
    kit.spread(*(b"before %d " % number + b"x" * 4000 for number in range(MANY)))
    until(lambda: held.taken)
    log = kit.server.data / f"store-{kit.server.name}" / "commitlog"
    until(lambda: len(list(log.iterdir())) <= 3, 120.0)
    keep_the_rest(kit)
    kept = still_there(kit)
    assert kept < MANY // 2
    kit.spread(*(b"then %d" % number for number in range(NEW)))
    handled = set[bytes]()

    def counted() -> bool:
        for message in list(held.connection.in_flight):
            held.connection.finish(message)
            handled.add(message.body[:11])
        return len(handled) >= kept + NEW and sum(body.startswith(b"then") for body in handled) == NEW

    until(counted, 60.0)


def keep_the_rest(kit: Kit) -> None:
    with kit.open()._sessions.use(kit.server.broker.address) as session:
        session.ask(Request.UPDATE_BROKER_CONFIG, {}, b"fileReservedTime=72\n")
    gevent.sleep(12.0)  # it is deleting perhaps, and then has its queues begin where its log does


def still_there(kit: Kit) -> int:
    """Messages of its topic, read or not."""
    with kit.open()._sessions.use(kit.server.broker.address) as session:
        said = session.ask(Request.GET_TOPIC_STATS_INFO, {"topic": kit.topic_there}).body
    return sum(int(last) - int(first) for last, first in _PLACES.findall(said))
