"""A broker that gives an id out again, for another message, costs none: the spool does not take it for the first one again."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from framework import Publisher
from framework.message import Batch, Message
from framework.spool import Spool, arrow, segment
from framework.testing.servers import Server
from tests.spool.test_kill import SCRIPT, landed

MakeBatch = Callable[..., Batch]


def later(batch: Batch, nanoseconds: int, *, suffix: bytes = b"") -> Batch:
    """Messages with the same ids, which the broker took later, or says so."""
    return Batch([Message(m.id + suffix, m.timestamp + nanoseconds, 1, m.body, m.connection) for m in batch])


def test_an_nsqd_whose_clock_was_set_back_gives_ids_out_again(tmp_path: Path, batch: MakeBatch) -> None:
    """nsqd's ids are milliseconds and a count (guid.go): a second message of the same id differs by nanoseconds."""
    with Spool(tmp_path) as spool:
        assert spool.land(batch(0, 10)) == 10
        assert spool.land(later(batch(0, 10), 1)) == 10
        assert spool.land(batch(0, 10)) == spool.land(later(batch(0, 10), 1)) == 0, "these are delivered again"
    with Spool(tmp_path) as after_a_restart:
        assert after_a_restart.land(batch(0, 10)) == after_a_restart.land(later(batch(0, 10), 1)) == 0
        assert after_a_restart.land(later(batch(0, 10), 2)) == 10


def test_an_id_that_is_not_given_out_again_is_known_whatever_time_it_has(tmp_path: Path, batch: MakeBatch) -> None:
    """beanstalkd says how many seconds old a job is, from which no two deliveries get the same time."""
    messages = batch(0, 10, lasting_ids=True)
    with Spool(tmp_path) as spool:
        assert spool.land(messages) == 10
        assert spool.land(later(messages, 1_000_000)) == 0
    with Spool(tmp_path) as after_a_restart:
        assert after_a_restart.land(later(messages, 2_000_000)) == 0
        assert after_a_restart.land(later(messages, 2_000_000, suffix=b"@00000000")) == 10


@pytest.mark.parametrize(
    ("some", "together"),
    [
        ([(None, "a"), (None, "b")], {}),  # of an older version
        ([(None, "a"), ("b", "b")], None),
        ([("a", "ab"), ("a", "ab")], "a"),
        ([("ab", "a"), ("ab", "b")], "ab"),
        ([("a", "ab"), ("", "b")], "a"),  # that one had nothing of a
        ([("a", "a"), ("b", "b")], "ab"),
        ([("a", "ab"), ("", "ab")], None),
        ([("a", "ab"), ("b", "b")], None),
    ],
)
def test_segments_that_contradict_each_other_are_not_joined(some: list[tuple[str | None, str]], together: Any) -> None:
    """Each says of which nodes the ids last, and has rows of some nodes."""
    tables = [
        pa.table({"nsqd": [*nodes]}).replace_schema_metadata(
            None if lasting is None else {arrow._LASTING: json.dumps([*lasting]).encode()}
        )
        for lasting, nodes in some
    ]
    if isinstance(together, str):
        together = {arrow._LASTING: json.dumps([*together]).encode()}
    assert arrow.metadata_of_all(tables) == together


def test_the_broker_says_whether_its_ids_last_and_not_what_they_look_like(tmp_path: Path, batch: MakeBatch) -> None:
    other = later(batch(0, 10), 0, suffix=b"@5f3a9c01")
    with Spool(tmp_path) as spool:
        assert spool.land(other) == spool.land(later(other, 1)) == 10
    with Spool(tmp_path) as after_a_restart:
        assert after_a_restart.land(other) == after_a_restart.land(later(other, 1)) == 0
        assert after_a_restart.land(later(other, 2)) == 10


def test_ids_in_segments_of_earlier_versions_are_judged_by_their_form(tmp_path: Path, batch: MakeBatch) -> None:
    """These did not say, and only beanstalkd's ids have an @."""
    job = later(batch(0, 1, lasting_ids=True), 0, suffix=b"@5f3a9c01")
    with Spool(tmp_path) as spool:
        assert spool.land(job) == 1
    (one,) = segment.listing(tmp_path / "main")
    table = segment.read(one.path).replace_schema_metadata(None)
    with pa.ipc.new_file(str(tmp_path / "earlier"), table.schema) as earlier:
        earlier.write_table(table)
    (tmp_path / "earlier").replace(one.path)
    with Spool(tmp_path) as spool:
        assert spool.land(later(job, 1_000_000)) == 0


@pytest.mark.real
def test_a_nats_server_that_lost_its_streams_counts_from_one_again(start_nats: Callable[..., Server], tmp_path: Path) -> None:
    nats = start_nats()
    url = f"nats://{nats.address}"
    collector = subprocess.Popen([sys.executable, str(SCRIPT), str(tmp_path / "spool"), url, "never"])
    try:
        first, second = [[b"%s %d" % (name, n) for n in range(200)] for name in (b"first", b"second")]
        publish_and_wait(url, first, tmp_path, Counter(first))
        nats.stop()
        shutil.rmtree(nats.data / "jetstream")
        nats.start()
        publish_and_wait(url, second, tmp_path, Counter(first + second))
        collector.send_signal(signal.SIGTERM)
        assert collector.wait(20) == 0
    finally:
        collector.kill()
        collector.wait()
    assert landed(tmp_path) == Counter(first + second)


def publish_and_wait(url: str, bodies: Sequence[bytes], tmp_path: Path, wanted: Counter[bytes]) -> None:
    """Return when ``wanted`` is landed, or has not been for a long time."""
    with closing(Publisher(url)) as publisher:
        publisher.publish_many("orders", bodies, timeout=20)
    until = time.monotonic() + 20
    while landed(tmp_path) != wanted and time.monotonic() < until:
        time.sleep(0.05)
