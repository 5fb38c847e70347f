"""All topics of one nsqd, between the storage's two threads and the hub: who is there, commits, lazy saves.

It is the port of its topics and channels (``framework.nsqd.port``), and takes what they have to tell as events.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import gevent
from gevent import Greenlet
from gevent.lock import BoundedSemaphore

from framework.nsqd.channel import Channel, ChannelChanged
from framework.nsqd.diskthread import DiskThread
from framework.nsqd.events import Events
from framework.nsqd.expiry import Expiry
from framework.nsqd.health import Health
from framework.nsqd.journal import Declares, Group, Journal, NotStored
from framework.nsqd.options import Options
from framework.nsqd.pertopic import PerTopic
from framework.nsqd.quotas import Quotas
from framework.nsqd.slices import Slices
from framework.nsqd.store import Batch, ChannelSave, Entry, Store, TopicSave, TopicState, record
from framework.nsqd.topic import Deserted, Emptied, Gone, Made, Topic, TopicChanged

NOT_SAVED = "DISK: states not saved"
NOT_EXPIRED = "DISK: what is too old was not dropped"
NOT_TIDIED = "DISK: what is finished was not removed, or what is confirmed not synced"
SAVE_SECONDS = 0.05
"""How much of what was finished may come back after a kill -9."""
_IDLE_SECONDS = 1.0
"""How often the storage is given a turn to tidy up when nothing changes."""
_RECENT_BYTES = 16 << 20
_STUCK_SECONDS = 10.0


class Broker:
    """The topics, and what keeps them: runs on the hub of the thread that makes it."""

    def __init__(self, store: Store, options: Options, log: Callable[[str, str], None]) -> None:
        self.options = options
        self.log = log
        self.start_time = time.time()
        self.health = Health(log, options.data_path)
        self.events = Events()
        self.changed: list[Topic | Channel] = []
        """To be saved with the next round."""
        self.recent: dict[tuple[int, int], Batch] = {}
        """What was written lately, by (topic number, first sequence number): read from here, not from the disk."""
        self._recent_order: deque[Batch] = deque()
        self._recent_bytes = 0
        self.clock = store.clock
        """By which messages are due."""
        self._store = store
        self._reader = DiskThread()
        self.journal = Journal(store, self._committed, self.health)
        self.emit = self.events.emit
        self.events.on(Declares, self.journal.take)
        self.events.on(TopicChanged, lambda event: self.changed.append(event.topic))
        self.events.on(ChannelChanged, lambda event: self.changed.append(event.channel))
        self.events.on(Emptied, self._forget_recent)
        self.events.on(Deserted, lambda event: self.delete_topic(event.topic.name))
        self._stopped = False
        self._saved = 0.0
        self._saving = BoundedSemaphore()
        """One after another: what a failed one could not keep goes with the next."""
        self._quotas = Quotas(PerTopic(options.topic_quotas))
        self.topics: dict[str, Topic] = {}
        self._numbers: dict[int, Topic] = {}
        for state in list(store.topics.values()):
            self._keep(Topic(self, state))
        self._report()
        self._saver = self.health.supervise(NOT_SAVED, self._save_rounds)
        self._expiry: Greenlet | None = None
        if ages := PerTopic(options.topic_ages):
            self._expiry = self.health.supervise(NOT_EXPIRED, Expiry(self.topics, ages, self, self.save).run)

    # --- topics ------------------------------------------------------------------------------------------------

    def _keep(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self._numbers[topic.id] = topic

    def topic(self, name: str) -> Topic:
        """The topic, made if there is none."""
        found = self.topics.get(name)
        if found is None:
            found = Topic(self, TopicState(self._new_number(), name, 0))
            self._keep(found)
            self.log("INFO", f"TOPIC({name}): created")
            found.declare()
            self.emit(Made(found))
        return found

    def _new_number(self) -> int:
        """A number that no topic has, nor any of which the log may still have records: they would become one at a restart."""
        while True:
            number = secrets.randbits(32)
            if number and number not in self._numbers and not self._store.has_number(number):
                return number

    def delete_topic(self, name: str) -> None:
        topic = self.topics.pop(name)
        del self._numbers[topic.id]
        self.log("INFO", f"TOPIC({name}): deleting")
        for channel in topic.channels:
            self.emit(Gone(topic, channel))
        self.emit(Gone(topic))
        topic.close()
        self.emit(Emptied(topic.id, 0, topic.next))
        topic.declare()

    # --- publishing --------------------------------------------------------------------------------------------

    def publish(self, entries: Sequence[tuple[Topic, Entry]]) -> Group | None:
        """Hand messages to the next commit; wait for the group, None when there is nothing to wait for.

        Raises QuotaReached: none of them is taken.
        """
        if self._quotas:
            self._quotas.check(entries)
        durable: list[Entry] = []
        for topic, entry in entries:
            if topic.ephemeral:
                topic.put_in_memory(entry)
            else:
                durable.append(entry)
        group = self.journal.add(durable) if durable else None
        if self._quotas and group is not None:
            self._quotas.taken(group, entries)
        return group

    def _committed(self, batches: list[Batch]) -> None:
        """Hand each record over, also when another's could not be. Raises what was wrong with one."""
        error: Exception | None = None
        touched: dict[int, Topic] = {}
        slices = Slices(awaited=True)  # every publisher waits for it: with 100 clients at long bodies a large group took 20 times
        before: Batch | None = None
        for batch in batches:
            slices.breathe()
            topic = self._numbers.get(batch.topic)
            if topic is None or batch is before:  # a declaration is written twice
                continue
            before = batch
            try:
                self._take(topic, batch)
            except Exception as failure:
                error = failure
            if batch.count:
                touched[topic.id] = topic
        for topic in touched.values():
            topic.serve()
        if error is not None:
            raise error

    def _take(self, topic: Topic, batch: Batch) -> None:
        if batch.count == 0:
            topic.recorded(batch.first, record.declaration(batch))
        else:
            self._remember(batch)
            topic.committed(batch)

    def _remember(self, batch: Batch) -> None:
        self.recent[batch.topic, batch.first] = batch
        self._recent_order.append(batch)
        self._recent_bytes += batch.weight
        while self._recent_bytes > _RECENT_BYTES:
            oldest = self._recent_order.popleft()
            self._recent_bytes -= oldest.weight
            self.recent.pop((oldest.topic, oldest.first), None)

    def _forget_recent(self, emptied: Emptied) -> None:
        for key in [key for key in self.recent if key[0] == emptied.topic and emptied.low <= key[1] < emptied.high]:
            del self.recent[key]

    # --- the storage's second thread ---------------------------------------------------------------------------

    def read(self, topic: int, seq: int, max_bytes: int) -> list[Batch]:
        """``Store.read`` without holding up the hub; blocks the greenlet."""
        try:
            return self._reader.do(self._store.read, topic, seq, max_bytes)
        finally:
            self._correct()

    def bodies(self, topic: int, seqs: Iterable[int], max_bytes: int) -> dict[int, tuple[int, bytes] | None]:
        """``Store.bodies`` likewise."""
        try:
            return self._reader.do(self._store.bodies, topic, seqs, max_bytes)
        finally:
            self._correct()

    def _correct(self) -> None:
        """No channel waits for messages that the storage has found damaged, and the counts are right again."""
        while self._store.corrections:
            found = self._store.corrections.pop(0)
            if (topic := self._numbers.get(found.topic)) is not None:
                topic.correct(found)

    @property
    def wrong(self) -> str:
        """What is wrong with it now, in words; "" for nothing."""
        stuck = max(self.journal.busy, self._reader.busy)
        return self.health.wrong or (f"DISK: it has not answered for {stuck:.0f} s" if stuck > _STUCK_SECONDS else "")

    def log_size(self) -> tuple[int, int]:
        """The segments of the log, and their bytes."""
        numbers = list(self._store.log.numbers)
        return len(numbers), sum(self._store.log.length(number) for number in numbers)

    def _save_rounds(self) -> None:
        while not self._stopped:
            gevent.sleep(SAVE_SECONDS)
            if self.changed or time.monotonic() - self._saved > _IDLE_SECONDS:
                self._try_to_save()

    def _try_to_save(self) -> None:
        """A failure is logged, and tried again with the next round."""
        try:
            self.save()
        except NotStored:
            pass
        if self._store.untidy:  # asked here: the way to the thread and back costs more than to commit a group
            self._tidy()
        self._report()

    def _tidy(self) -> None:
        try:
            self._reader.do(self._store.tidy)
        except Exception as error:
            self.health.fails(NOT_TIDIED, error)
        else:
            self.health.works(NOT_TIDIED)

    def save(self) -> None:
        """Return when all that changed is saved. Raises NotStored: it goes with the next round."""
        with self._saving:
            self._saved = time.monotonic()
            # What was deleted stays on the disk as it was, until the log knows.
            changed, self.changed = [one for one in self.changed if isinstance(one, Topic) or one.declared], []
            topics: list[tuple[Topic, TopicSave]] = []
            channels: list[tuple[Channel, ChannelSave]] = []
            try:
                for one in changed:
                    if isinstance(one, Topic):
                        topics.append((one, one.snapshot()))
                    else:
                        channels.append((one, one.snapshot()))
                self._reader.do(self._store.save, [save for _, save in topics], [save for _, save in channels])
            except BaseException as error:
                for topic, topic_save in topics:
                    topic.unsaved(topic_save)
                for channel, channel_save in channels:
                    channel.unsaved(channel_save)
                if not isinstance(error, Exception):
                    raise
                self.health.fails(NOT_SAVED, error)
                raise NotStored(str(error)) from error
            self.health.works(NOT_SAVED)

    def _report(self) -> None:
        self._correct()
        while self._store.reports:
            self.log("WARNING", f"DISK: {self._store.reports.pop(0)}")

    def stop(self) -> None:
        """Commit and save what is there, and close the storage. Raises NotStored: what was not saved is delivered again."""
        self._stopped = True
        if self._expiry is not None:
            self._expiry.kill()
        self.journal.stop()
        self._saver.join()
        self._try_to_save()
        try:
            self._save_last()
        finally:
            for topic in self.topics.values():
                for channel in topic.channels.values():
                    channel.forget_leases()
            self._close_store()

    def _save_last(self) -> None:
        """Where the disk is full, with the blocks that are kept in reserve: nobody needs them any more."""
        if not self.changed:
            return
        self._reader.do(self._store.reserve.spend)
        self.save()

    def _close_store(self) -> None:
        try:
            self._reader.do(self._store.close)
        except (OSError, sqlite3.Error) as error:
            raise NotStored(str(error)) from error
        finally:
            self._reader.end()
