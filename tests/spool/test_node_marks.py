"""In a storage the name beside a segment says of which nodes its rows are, as long as they are few."""

from __future__ import annotations

import pytest

from framework.message import Batch
from framework.spool import Spool, numbered, segment
from framework.spool.storage import Remote
from framework.spool.times import mark_of
from tests.spool.rows import MakeBatch
from tests.spool.test_numbered import forget, memory_of


def land(folder: Remote, batch: MakeBatch, nodes: int) -> None:
    with Spool(folder) as spool:
        spool.land(Batch([message for n in range(nodes) for message in batch(n, n + 1, node=f"host-{n}:4150")]))


def told(folder: Remote) -> str:
    (name,) = [name for name in memory_of(folder).objects if name.endswith(".rows")]
    return name


@pytest.mark.parametrize("nodes", [1, numbered._MOST_NODES, numbered._MOST_NODES + 1])
def test_up_to_eight_nodes_are_told_by_another_process(memory: Remote, batch: MakeBatch, nodes: int) -> None:
    land(memory, batch, nodes)
    forget()
    (one,) = segment.listing(memory / "main")
    marks = {mark_of(f"host-{n}:4150") for n in range(nodes)}
    assert one.nodes == (marks if nodes <= 8 else None)
    assert segment.times_of(memory / "main", [one])[1].nodes == one.nodes
    assert len(told(memory).rpartition("/")[2]) < 255, "HDFS takes no longer name"


def test_where_its_writer_was_killed_whoever_looks_tells_them(memory: Remote, batch: MakeBatch) -> None:
    land(memory, batch, 2)
    name = told(memory)
    del memory_of(memory).objects[name]
    forget()
    (one,) = segment.listing(memory / "main")
    assert one.nodes == {mark_of("host-0:4150"), mark_of("host-1:4150")}
    assert told(memory) == name


def test_a_name_of_an_earlier_version_tells_none(memory: Remote, batch: MakeBatch) -> None:
    land(memory, batch, 1)
    objects = memory_of(memory).objects
    name = told(memory)
    older = name.rpartition("-")[0] + ".rows"
    objects[older] = objects.pop(name)
    forget()
    (one,) = segment.listing(memory / "main")
    assert (one.rows, one.nodes, told(memory)) == (1, None, older)
    assert one.taken is not None


def test_the_name_goes_with_the_segment(memory: Remote, batch: MakeBatch) -> None:
    with Spool(memory) as spool:
        for n in range(3):
            spool.land(batch(n, n + 1, node=f"host-{n}:4150"))
    forget()
    segment.trim(memory / "main", before=3, keep_rows=1)
    assert int(told(memory).rpartition("/")[2][:20]) == 3
