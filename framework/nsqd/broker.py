"""All topics of one nsqd, between the storage's two threads and the hub: lookups, commits, lazy saves."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import gevent

from framework.nsqd.aside import Aside
from framework.nsqd.channel import Channel
from framework.nsqd.journal import Group, Journal
from framework.nsqd.store import Batch, Declare, Entry, Store, TopicState
from framework.nsqd.topic import Topic
from framework.nsqd.turns import Turns

if TYPE_CHECKING:
    from framework.nsqd.lookups import Lookups
    from framework.nsqd.options import Options

SAVE_SECONDS = 0.05
"""How much of what was finished may come back after a kill -9."""
_IDLE_SECONDS = 1.0
"""How often the storage is given a turn to tidy up when nothing changes."""
_RECENT_BYTES = 16 << 20


class Broker:
    """The topics, and what keeps them: runs on the hub of the thread that makes it."""

    def __init__(self, store: Store, options: Options, log: Callable[[str, str], None]) -> None:
        self.options = options
        self.log = log
        self.start_time = time.time()
        self.error: Exception | None = None
        """Why the last write failed; None once one succeeds."""
        self.lookups: Lookups | None = None
        """Who is told what topics and channels are here."""
        self.changed: list[Topic | Channel] = []
        """To be saved with the next round."""
        self.recent: dict[tuple[int, int], Batch] = {}
        """What was written lately, by (topic number, first sequence number): read from here, not from the disk."""
        self._recent_order: deque[Batch] = deque()
        self._recent_bytes = 0
        self._store = store
        self._reader = Aside()
        self.journal = Journal(store, self._committed, self._failed)
        self._stopped = False
        self._saved = 0.0
        self._unsaved = ""
        """Why states cannot be saved now."""
        self.topics: dict[str, Topic] = {}
        self._numbers: dict[int, Topic] = {}
        for state in list(store.topics.values()):
            self._keep(Topic(self, state))
        self._report()
        self._saver = gevent.spawn(self._save_rounds)

    # --- topics ------------------------------------------------------------------------------------------------

    def _keep(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self._numbers[topic.id] = topic

    def topic(self, name: str) -> Topic:
        """The topic, made if there is none."""
        found = self.topics.get(name)
        if found is None:
            found = Topic(self, TopicState(self.new_id(32), name, 0))
            self._keep(found)
            self.log("INFO", f"TOPIC({name}): created")
            self.declare(found)
            if self.lookups is not None:
                self.lookups.introduce(found)
        return found

    def announce(self, topic: str, channel: str = "", *, there: bool) -> None:
        """Let the nsqlookupds know of what was made or deleted."""
        if self.lookups is not None:
            self.lookups.announce(topic, channel, there=there)

    def new_id(self, bits: int = 62) -> int:
        """A number that no topic or channel has or had: records of deleted ones may still be in the log."""
        return secrets.randbits(bits) or 1

    def delete_topic(self, name: str) -> None:
        topic = self.topics.pop(name)
        del self._numbers[topic.id]
        self.log("INFO", f"TOPIC({name}): deleting")
        for channel in topic.channels:
            self.announce(name, channel, there=False)
        self.announce(name, there=False)
        topic.close()
        self.forget_recent(topic.id, 0, topic.next)
        self.declare(topic)

    def declare(self, topic: Topic) -> None:
        """Have the log know the topic's name, channels and pauses as they are now."""
        if not topic.ephemeral:
            topic.declared = self.journal.add([Declare(topic.id, topic.declaration())])

    def settle(self, topic: Topic) -> None:
        """Return when what was declared of the topic is on the disk. Raises NotStored."""
        if topic.declared is not None:
            if topic.declared.error is not None:
                self.declare(topic)
            topic.declared.wait()

    # --- publishing --------------------------------------------------------------------------------------------

    def publish(self, entries: Sequence[tuple[Topic, Entry]]) -> Group | None:
        """Hand messages to the next commit; wait for the group, None when there is nothing to wait for."""
        durable: list[Entry] = []
        for topic, entry in entries:
            if topic.ephemeral:
                topic.put_in_memory(entry)
            else:
                durable.append(entry)
        return self.journal.add(durable) if durable else None

    def _committed(self, batches: list[Batch]) -> None:
        self.error = None
        touched: dict[int, Topic] = {}
        turns = Turns()
        for batch in batches:
            turns.breathe()
            topic = self._numbers.get(batch.topic)
            if topic is None:
                continue
            if batch.count == 0:
                topic.start_at(batch.first)
                continue
            self._remember(batch)
            topic.committed(batch)
            touched[topic.id] = topic
        for topic in touched.values():
            topic.serve()

    def _failed(self, error: Exception) -> None:
        self.error = error
        self.log("ERROR", f"DISK: nothing was published - {error}")

    def _remember(self, batch: Batch) -> None:
        self.recent[batch.topic, batch.first] = batch
        self._recent_order.append(batch)
        self._recent_bytes += batch.weight
        while self._recent_bytes > _RECENT_BYTES:
            oldest = self._recent_order.popleft()
            self._recent_bytes -= oldest.weight
            self.recent.pop((oldest.topic, oldest.first), None)

    def forget_recent(self, topic: int, low: int, high: int) -> None:
        """Those messages were emptied."""
        for key in [key for key in self.recent if key[0] == topic and low <= key[1] < high]:
            del self.recent[key]

    # --- the storage's second thread ---------------------------------------------------------------------------

    def read(self, topic: int, seq: int, max_bytes: int) -> list[Batch]:
        """``Store.read`` without holding up the hub; blocks the greenlet."""
        return self._reader.do(self._store.read, topic, seq, max_bytes)

    def bodies(self, topic: int, seqs: Iterable[int], max_bytes: int) -> dict[int, tuple[int, bytes] | None]:
        """``Store.bodies`` likewise."""
        return self._reader.do(self._store.bodies, topic, seqs, max_bytes)

    def _save_rounds(self) -> None:
        while not self._stopped:
            gevent.sleep(SAVE_SECONDS)
            if self.changed or time.monotonic() - self._saved > _IDLE_SECONDS:
                self.save()

    def save(self) -> None:
        """Save what changed; a failure is logged and tried again with the next round."""
        self._saved = time.monotonic()
        changed, self.changed = self.changed, []
        topics = [(one, one.snapshot()) for one in changed if isinstance(one, Topic)]
        channels = [(one, one.snapshot()) for one in changed if isinstance(one, Channel)]
        try:
            self._reader.do(self._store.save, [save for _, save in topics], [save for _, save in channels])
        except Exception as error:
            self._say_unsaved(str(error))
            for topic, topic_save in topics:
                topic.unsaved(topic_save)
            for channel, channel_save in channels:
                channel.unsaved(channel_save)
        else:
            self._unsaved = ""
        self._report()

    def _say_unsaved(self, why: str) -> None:
        """Once, though it is tried again with every round."""
        if why != self._unsaved:
            self._unsaved = why
            self.log("ERROR", f"DISK: states not saved - {why}")

    def _report(self) -> None:
        while self._store.reports:
            self.log("WARNING", f"DISK: {self._store.reports.pop(0)}")

    def stop(self) -> None:
        """Commit and save what is there, and close the storage."""
        self._stopped = True
        self.journal.stop()
        self._saver.join()
        self.save()
        self._reader.do(self._store.close)
        self._reader.end()
