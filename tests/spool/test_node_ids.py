"""What tells an nsqd: its address, or the ``--node-id`` that is in all its ids. It may come back at another address."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from framework.message import Batch, Message
from framework.spool import Spool, SpoolError
from framework.spool.seen import node_id_of
from framework.testing import servers
from tests.origins import Source
from tests.spool.rows import ids
from tests.spool.test_kill import SCRIPT, landed, wait_until_empty

HERE, THERE, OTHER = Source(node="10.0.0.1:4150"), Source(node="10.0.0.2:4150"), Source(node="10.0.0.3:4150")


def made(origin: Source, node_id: int, *sequence: int, at: int = 7) -> list[Message]:
    return [Message(b"%016x" % (at << 22 | node_id << 12 | n), 1000 * at + n, 1, b"m", origin) for n in sequence]


@pytest.mark.parametrize("node_ids", [True, False])
def test_a_message_that_comes_again_from_another_address_is_known_by_the_node_id_alone(tmp_path: Path, node_ids: bool) -> None:
    with Spool(tmp_path, node_ids=node_ids) as spool:
        assert spool.land(Batch(made(HERE, 5, 0, 1, 2))) == 3
    with Spool(tmp_path, node_ids=node_ids) as again:  # it knows them from the segment
        assert again.land(Batch([*made(THERE, 5, 1, 2, 3), *made(OTHER, 6, 1)])) == (2 if node_ids else 4)
        assert again.land(Batch(made(THERE, 5, 0, 3))) == (0 if node_ids else 1)
    assert len(ids(again)) == (5 if node_ids else 8)


def test_two_nsqds_with_one_node_id_are_told_apart_by_their_addresses_or_refused(tmp_path: Path) -> None:
    both = Batch([*made(HERE, 5, 0, 1), *made(THERE, 5, 0, 1)])
    assert Spool(tmp_path / "by address").land(both) == 4
    words = "nsqd 10.0.0.1:4150 and nsqd 10.0.0.2:4150 have the same --node-id, 5: give each one of its own, or leave no"
    spool = Spool(tmp_path / "by id", node_ids=True)
    with pytest.raises(SpoolError, match=words):
        spool.land(both)
    assert spool.land(Batch([*made(HERE, 5, 0), *made(THERE, 6, 0)])) == 2, "the next batch may be right"


def test_ids_of_other_brokers_tell_no_node() -> None:
    found = [node_id_of(one.id) for number in (0, 5, 1023) for one in made(HERE, number, 0, 4095)]
    assert found == [0, 0, 5, 5, 1023, 1023]
    assert [node_id_of(one) for one in (b"12", b"17@1700000000-9", b"not hexadecimal!")] == [None] * 3


@pytest.mark.real
@pytest.mark.timeout(120)
def test_what_an_nsqd_had_in_flight_when_it_moved_is_landed_once(tmp_path: Path) -> None:
    (tmp_path / "nsqd").mkdir()
    first, second = (servers.real_nsqd(tmp_path / "nsqd", "--msg-timeout=2s", "--node-id=77") for _ in range(2))
    sent = Counter(b"m%d" % n for n in range(6_000))
    command = [sys.executable, str(SCRIPT), str(tmp_path / "spool")]
    environment = {**os.environ, "NODE_IDS": "1"}
    try:
        first.start()
        first.http("/topic/create?topic=orders", b"")
        first.http("/channel/create?topic=orders&channel=archive", b"")
        first.http("/mpub?topic=orders", b"\n".join(sent))
        killed = subprocess.run([*command, f"nsq://{first.address}", "durable"], timeout=30, check=False, env=environment)
        assert killed.returncode == -signal.SIGKILL
        first.stop()  # it writes what was in flight to its folder
        second.start()
        assert second.address != first.address
        collector = subprocess.Popen([*command, f"nsq://{second.address}", "never"], env=environment)
        try:
            wait_until_empty(second, collector)
            collector.send_signal(signal.SIGTERM)
            assert collector.wait(20) == 0
        finally:
            collector.kill()
            collector.wait()
    finally:
        first.kill()
        second.kill()
    assert landed(tmp_path) == sent
