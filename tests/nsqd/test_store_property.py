"""The storage under any sequence of declarations, appends, saves, faults, kills and losses of its index: a state machine."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from framework.nsqd.store import (
    ChannelSave,
    Declaration,
    Declare,
    Declared,
    Entry,
    FolderUnusable,
    Retry,
    Store,
    TopicSave,
    compaction,
    record,
    reserve,
    store,
)
from tests.nsqd.faults import Disk, Kills, failed_transactions

TOPIC, CHANNEL = 7, 70
"""It has its channel from the start."""
LATE, LATE_CHANNEL = 8, 80
"""It gets its channel late, or never."""
STEPS = ["publish", "save", "declare", "first", "sweep"]
EXAMPLES = int(os.environ.get("STORE_EXAMPLES", "15"))
"""Hundreds are for the evening before a release: STORE_EXAMPLES=300."""
INDEX = ("index.db", "index.db-wal", "index.db-shm")


def payload(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def saved(cursor: int, **changes: object) -> ChannelSave:
    fields = {"inflight": (), "put": {}, "drop": ()} | changes
    return ChannelSave(CHANNEL, TOPIC, "c", cursor, **fields)  # type: ignore[arg-type]


class StoreMachine(RuleBasedStateMachine):
    """No unfinished message is ever missing, and what is declared is as it was confirmed."""

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="store-"))
        self.disk = Disk(self.root / "disk")
        self.folder = self.root / "disk" / "0"
        self.kills = 0
        self.segment_bytes, store.SEGMENT_BYTES = store.SEGMENT_BYTES, 3000
        self.roll_bytes, store._ROLL_BYTES = store._ROLL_BYTES, 500
        self.least_free, store.RESERVE_BYTES = store.RESERVE_BYTES, 0
        self.share, compaction._SHARE = compaction._SHARE, 0
        self.kept_free, reserve.RESERVE_BYTES = reserve.RESERVE_BYTES, 4096
        self.bodies: dict[int, dict[int, bytes]] = {TOPIC: {}, LATE: {}}
        self.unfinished: dict[int, set[int]] = {TOPIC: set(), LATE: set()}
        self.channels: dict[int, dict[str, Declared]] = {TOPIC: {"c": Declared(CHANNEL, 0)}, LATE: {}}
        self.paused = False
        self.full = False
        self.count = 0
        self.opened = Store(self.folder)
        self.opened.append([self.declaration(TOPIC), self.declaration(LATE)])

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            self.disk.empty()
            self.opened.close()
            self.disk.close()
            store.SEGMENT_BYTES, store._ROLL_BYTES = self.segment_bytes, self.roll_bytes
            store.RESERVE_BYTES, compaction._SHARE = self.least_free, self.share
            reserve.RESERVE_BYTES = self.kept_free
            shutil.rmtree(self.root)

    def declaration(self, topic: int, channels: dict[str, Declared] | None = None, paused: bool | None = None) -> Declare:
        wanted = self.channels[topic] if channels is None else channels
        stopped = self.paused if paused is None else paused
        return Declare(topic, Declaration(f"t{topic}", paused=stopped and topic == TOPIC, channels=wanted))

    # --- what its user does --------------------------------------------------------------------------------------

    @rule(topic=st.sampled_from([TOPIC, LATE]), sizes=st.lists(st.integers(1, 400), min_size=1, max_size=12), due=st.booleans())
    def publish(self, topic: int, sizes: list[int], due: bool) -> None:
        bodies = [b"%08d" % (self.count + at) + b"x" * size for at, size in enumerate(sizes)]
        self.count += len(bodies)
        entries = [Entry(topic, payload(body), 1, 1 << 50 if due else 0) for body in bodies]
        try:
            batches = self.opened.append(entries)
        except OSError:
            assert self.full
            return
        for batch in batches:
            for at, body in enumerate(record.bodies(batch.payload, batch.count)):
                assert batch.first + at not in self.bodies[topic]
                self.bodies[topic][batch.first + at] = body
                self.unfinished[topic].add(batch.first + at)

    @precondition(lambda self: self.bodies[TOPIC])
    @rule(mask=st.integers(0, 1 << 64))
    def deliver_and_finish(self, mask: int) -> None:
        """A channel that has delivered all, finished some, has some in flight and some deferred: by the mask's bits."""
        below = max(self.bodies[TOPIC]) + 1
        kept = [seq for at, seq in enumerate(sorted(self.unfinished[TOPIC])) if mask >> at % 64 & 1]
        put = {seq: Retry(1 << 60, 1) for seq in kept[::2]}
        drop = [seq for seq in self.bodies[TOPIC] if seq not in kept]
        try:
            self.opened.save([TopicSave(TOPIC, below)], [saved(below, inflight=kept[1::2], put=put, drop=drop)])
        except sqlite3.OperationalError:
            assert self.full
            return
        self.unfinished[TOPIC] = set(kept)

    @rule(mask=st.integers(0, 1 << 64))
    def failed_transaction(self, mask: int) -> None:
        """What a save was about to say is not so, for the sweep that follows neither."""
        unfinished = set(self.unfinished[TOPIC])
        was, self.full = self.full, True
        with failed_transactions():
            if self.bodies[TOPIC]:
                self.deliver_and_finish(mask)
            with pytest.raises(sqlite3.OperationalError):
                self.opened.save([TopicSave(TOPIC, 1 << 62)], [saved(1 << 62)])
        self.full = was
        self.unfinished[TOPIC] = unfinished
        self.sweep_once()

    @rule(topic_paused=st.booleans(), other=st.booleans(), other_paused=st.booleans())
    def declare(self, topic_paused: bool, other: bool, other_paused: bool) -> None:
        channels = {"c": self.channels[TOPIC]["c"]}
        if other:
            self.count += 1  # an id of its own each time that it is made
            there = self.channels[TOPIC].get("o") or Declared(1000 + self.count, max(self.bodies[TOPIC], default=0) + 1)
            channels["o"] = Declared(there.id, there.cursor, other_paused)
        self.append_declaration(TOPIC, channels, topic_paused)

    @rule()
    def first_channel_late(self) -> None:
        """What waited is the channel's from here on; a position is saved now, and not before."""
        channels = {"late": Declared(LATE_CHANNEL, min(self.bodies[LATE], default=0))}
        if not self.append_declaration(LATE, channels, False):
            return
        try:
            self.opened.save([TopicSave(LATE, max(self.bodies[LATE], default=0) + 1)])
        except sqlite3.OperationalError:
            assert self.full

    def append_declaration(self, topic: int, channels: dict[str, Declared], paused: bool) -> bool:
        try:
            self.opened.append([self.declaration(topic, channels, paused)])
        except OSError:
            assert self.full
            return False
        self.channels[topic] = channels
        self.paused = paused if topic == TOPIC else self.paused
        return True

    @rule(times=st.integers(1, 4))
    def sweep(self, times: int) -> None:
        for _ in range(times):
            self.sweep_once()

    def sweep_once(self) -> None:
        try:
            self.opened.sweep()
        except (sqlite3.OperationalError, OSError):
            assert self.full

    # --- what happens to it --------------------------------------------------------------------------------------

    @precondition(lambda self: not self.full)
    @rule()
    def disk_full(self) -> None:
        self.opened.flush()  # what is not indexed cannot be read there
        self.disk.fill()
        self.full = True

    @precondition(lambda self: self.full)
    @rule()
    def room_again(self) -> None:
        self.disk.empty()
        self.full = False

    @rule()
    def restart_on_a_full_disk(self) -> None:
        """It starts, or says why not; what it has is as it was."""
        self.end()
        before = self.kept_bytes()
        self.disk.empty()
        self.disk.fill()
        try:
            self.opened = Store(self.folder)
        except FolderUnusable:
            assert self.kept_bytes() == before
            assert not (self.folder / "bad").exists()
            self.disk.empty()
            self.full = False
            self.opened = Store(self.folder)
        else:
            self.disk.empty()
            self.full = False
        self.check(self.opened, lost_index=False)

    def kept_bytes(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.folder / "log").iterdir()}

    @rule(lose_index=st.booleans())
    def kill_between_moving_and_removing(self, lose_index: bool) -> None:
        compactor = self.opened._compactor
        for segment in self.opened.log.numbers[:-1]:
            if not self.full and (found := compactor.plan(segment)):
                compactor.move(found)
        self.kill(lose_index)

    @precondition(lambda self: not self.full)
    @rule(what=st.sampled_from(STEPS), mask=st.integers(0, 1 << 64), lost=st.booleans())
    def kill_between_any_two_writes(self, what: str, mask: int, lost: bool) -> None:
        """Each copy has all that was unfinished before and after; a declaration is there, or not there, as a whole."""
        before = {topic: set(seqs) for topic, seqs in self.unfinished.items()}
        kills = Kills(self.folder, Path(tempfile.mkdtemp(dir=self.root)))
        with kills.recorded():
            self.do(what, mask)
        must = {topic: before[topic] & seqs for topic, seqs in self.unfinished.items()}
        for copy in kills.copies:
            for name in INDEX if lost else ():
                (copy / name).unlink(missing_ok=True)
            opened = Store(copy)
            assert all("never confirmed" in report for report in opened.reports)
            self.check(opened, lost_index=lost, must=must)
            opened.close()
        shutil.rmtree(kills.copies[0].parent)

    def do(self, what: str, mask: int) -> None:
        if what == "publish":
            self.publish(LATE if mask & 2 else TOPIC, [mask % 400 + 1] * 3, bool(mask & 1))
        elif what == "save" and self.bodies[TOPIC]:
            self.deliver_and_finish(mask)
        elif what == "declare":
            self.declare(bool(mask & 1), bool(mask & 2), bool(mask & 4))
        elif what == "first":
            self.first_channel_late()
        else:
            self.sweep_once()
            self.sweep_once()

    @rule(lose_index=st.booleans())
    def kill(self, lose_index: bool) -> None:
        self.disk.empty()
        self.full = False
        self.kills += 1
        fresh = self.root / "disk" / str(self.kills)
        shutil.copytree(self.folder, fresh)
        self.opened.close()
        shutil.rmtree(self.folder)
        self.folder = fresh
        for name in INDEX if lose_index else ():
            (fresh / name).unlink(missing_ok=True)
        self.opened = Store(fresh)
        assert self.opened.reports == []
        self.check(self.opened, lose_index)
        if lose_index:
            self.accept_redeliveries()

    def end(self) -> None:
        """As a kill -9 does: nothing is saved."""
        self.opened.index.close()
        self.opened.log.close()
        self.opened.folder.close()

    def accept_redeliveries(self) -> None:
        """Without its index a channel starts again at what the log has: more may come back, nothing less."""
        channel = self.opened.topics[TOPIC].channels["c"]
        self.opened.save([TopicSave(TOPIC, channel.cursor)], [saved(channel.cursor, put=channel.retries)])
        behind = [seq for seq in self.bodies[TOPIC] if seq >= channel.cursor]
        readable = {seq for seq in behind if self.opened.bodies(TOPIC, [seq], 1).get(seq)}
        self.unfinished[TOPIC] |= readable | set(channel.retries)

    # --- what must be so -----------------------------------------------------------------------------------------

    def check(self, opened: Store, lost_index: bool, must: dict[int, set[int]] | None = None) -> None:
        """After a start: everything unfinished belongs to a channel, or waits in its topic."""
        exactly = must is None
        wanted = self.unfinished if must is None else must
        for topic, seqs in wanted.items():
            state = opened.topics[topic]
            assert all(seq >= state.pumped for seq in seqs) or state.channels
            for name, channel in state.channels.items():
                if name != "o":
                    assert all(seq >= channel.cursor or seq in channel.retries for seq in seqs)
            if exactly:
                assert {name: (one.id, one.paused) for name, one in state.channels.items()} == {
                    name: (one.id, one.paused) for name, one in self.channels[topic].items()
                }
                assert state.paused == (self.paused and topic == TOPIC)
                if not state.channels:
                    assert state.depth == len(seqs)
            found = opened.bodies(topic, sorted(seqs), 1 << 30)
            assert {seq: found[seq] and found[seq][1] for seq in seqs} == {seq: self.bodies[topic][seq] for seq in seqs}
        if exactly and not lost_index:
            assert set(opened.topics[TOPIC].channels["c"].retries) <= self.unfinished[TOPIC]

    @invariant()
    def every_unfinished_message_can_be_read(self) -> None:
        if not hasattr(self, "opened"):
            return
        for topic, seqs in self.unfinished.items():
            try:
                found = self.opened.bodies(topic, sorted(seqs), 1 << 30)
            except sqlite3.OperationalError:
                assert self.full  # its place could not be indexed yet
                continue
            assert {seq: found[seq][1] for seq in seqs} == {seq: self.bodies[topic][seq] for seq in seqs}


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
