"""The storage under any sequence of appends, saves, kills and losses of its index: a state machine."""

from __future__ import annotations

import shutil
import struct
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from framework.nsqd.store import (
    ChannelSave,
    Declaration,
    Declare,
    Declared,
    Entry,
    Pending,
    Store,
    TopicSave,
    compaction,
    record,
    store,
)

TOPIC, CHANNEL = 7, 70


def payload(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def saved(cursor: int, **changes: object) -> ChannelSave:
    fields = {"paused": False, "inflight": (), "put": {}, "drop": ()} | changes
    return ChannelSave(CHANNEL, TOPIC, "c", cursor, **fields)  # type: ignore[arg-type]


class StoreMachine(RuleBasedStateMachine):
    """Any sequence of appends, saves, kills and losses of the index: no unfinished message is ever missing."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="store-"))
        self.folder = self.root / "0"
        self.segment_bytes, store.SEGMENT_BYTES = store.SEGMENT_BYTES, 3000
        self.roll_bytes, store._ROLL_BYTES = store._ROLL_BYTES, 500
        self.share, compaction._SHARE = compaction._SHARE, 0
        self.opened = Store(self.folder)
        self.opened.append([Declare(TOPIC, Declaration("t", channels={"c": Declared(CHANNEL, 0)}))])
        self.bodies: dict[int, bytes] = {}
        self.unfinished: set[int] = set()
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            self.opened.close()
            store.SEGMENT_BYTES, store._ROLL_BYTES = self.segment_bytes, self.roll_bytes
            compaction._SHARE = self.share
            shutil.rmtree(self.root)

    @rule(sizes=st.lists(st.integers(1, 400), min_size=1, max_size=12), due=st.booleans())
    def publish(self, sizes: list[int], due: bool) -> None:
        bodies = [b"%08d" % (self.count + at) + b"x" * size for at, size in enumerate(sizes)]
        self.count += len(bodies)
        entries = [Entry(TOPIC, payload(body), 1, 1 << 50 if due else 0) for body in bodies]
        for batch in self.opened.append(entries):
            for at, body in enumerate(record.bodies(batch.payload, batch.count)):
                self.bodies[batch.first + at] = body
                self.unfinished.add(batch.first + at)

    @precondition(lambda self: self.bodies)
    @rule(mask=st.integers(0, 1 << 64))
    def deliver_and_finish(self, mask: int) -> None:
        """A channel that has delivered all, finished some, has some in flight and some deferred: by the mask's bits."""
        below = max(self.bodies) + 1
        kept = [seq for at, seq in enumerate(sorted(self.unfinished)) if mask >> at % 64 & 1]
        put = {seq: Pending(1 << 60, 1) for seq in kept[::2]}
        inflight = kept[1::2]
        drop = [seq for seq in self.bodies if seq not in kept]
        self.opened.save([TopicSave(TOPIC, below, False)], [saved(below, inflight=inflight, put=put, drop=drop)])
        self.unfinished = set(kept)

    @rule(times=st.integers(1, 4))
    def sweep(self, times: int) -> None:
        for _ in range(times):
            self.opened.sweep()

    @rule(lose_index=st.booleans())
    def kill_between_moving_and_removing(self, lose_index: bool) -> None:
        compactor = self.opened._compactor
        for segment in self.opened.log.numbers[:-1]:
            if found := compactor.plan(segment):
                compactor._move(found)
        self.kill(lose_index)

    @rule(lose_index=st.booleans())
    def kill(self, lose_index: bool) -> None:
        fresh = self.root / f"{int(self.folder.name) + 1}"
        shutil.copytree(self.folder, fresh)
        self.opened.close()
        shutil.rmtree(self.folder)
        self.folder = fresh
        if lose_index:
            for name in ("index.db", "index.db-wal", "index.db-shm"):
                (fresh / name).unlink(missing_ok=True)
        self.opened = Store(fresh)
        assert self.opened.reports == []
        channel = self.opened.topics[TOPIC].channels["c"]
        for seq in self.unfinished:
            assert seq >= channel.cursor or seq in channel.pending
        if not lose_index:
            assert set(channel.pending) <= self.unfinished
            return
        # Without its index the channel starts again at what the log has: more may come back, nothing less.
        self.opened.save([TopicSave(TOPIC, channel.cursor, False)], [saved(channel.cursor, put=channel.pending)])
        readable = {seq for seq in self.bodies if seq >= channel.cursor and self.opened.bodies(TOPIC, [seq], 1).get(seq)}
        self.unfinished |= readable | set(channel.pending)

    @invariant()
    def every_unfinished_message_can_be_read(self) -> None:
        if not hasattr(self, "opened"):
            return
        found = self.opened.bodies(TOPIC, sorted(self.unfinished), 1 << 30)
        assert {seq: found[seq][1] for seq in self.unfinished} == {seq: self.bodies[seq] for seq in self.unfinished}


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=40, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
