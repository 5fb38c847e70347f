"""What the store does when it opens a folder: nothing good is ever given up, and what is damaged is accounted for once.

All that is found goes into the index in one transaction: the folder is as it was until all of it is known. Memory does not
grow with the log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from framework.nsqd.store import loading, lostend, record, saving, unfinished
from framework.nsqd.store.catalog import Catalog
from framework.nsqd.store.compaction import dense
from framework.nsqd.store.damage import LEAP, Damage, Numbers, pieces, say_damaged
from framework.nsqd.store.folder import ReadOnlyFolder
from framework.nsqd.store.index import EMPTIED, Index, RetryRow, Row
from framework.nsqd.store.rolling import roll
from framework.nsqd.store.segments import Broken, Found, Segments
from framework.nsqd.store.state import ChannelState, TopicState

_ROWS = 10_000
"""Given to the index at once."""


def recover(folder: ReadOnlyFolder, log: Segments, index: Index, catalog: Catalog) -> list[TopicState]:
    """Fill the catalog from the index and from the log behind it, and cut a torn tail.

    Returns the topics that have another name now: the log is to be told.
    """
    position = index.position()
    loading.load(index, catalog)
    catalog.rebuilt = position is None
    found = _Scan(folder, log, index, catalog)
    try:
        with index.transaction():
            if position is not None and (end := lostend.find(log, position)) is not None:
                found.lose_end(end, position)
                position = end
            found.run(position or (log.numbers[0] if log.numbers else 0, 0))
            found.settle(position)
            catalog.position = found.end
            if found.shortened:  # before the index says that it is accounted for: what was declared there is in the index alone
                roll(log, catalog)
    except BaseException:
        found.forget_files()
        raise
    if catalog.rebuilt and (absent := _absent(log.numbers)):
        folder.reports.append(
            f"the log has no {absent}: such go when all that they had is finished, and with the index it is lost whether it was"
        )
    if found.torn is not None:
        log.cut(found.torn)
    if found.headless:
        roll(log, catalog)
    for topic in catalog.topics.values():
        loading.load_backlog(index, topic)
    return found.adopted + _part_namesakes(folder, catalog)


class _Scan:
    """The records behind the position that the index has."""

    def __init__(self, folder: ReadOnlyFolder, log: Segments, index: Index, catalog: Catalog) -> None:
        self._folder = folder
        self._log = log
        self._index = index
        self._catalog = catalog
        self._numbers = Numbers()
        self._rows: list[tuple[int, ...]] = []
        self._declared: set[int] = set()
        self._dropped: set[int] = set()
        self._orphans: dict[int, tuple[int, int, int]] = {}
        """Topic -> lowest number, end, count of messages whose topic was not declared before them."""
        self._unnamed: dict[int, int] = {}
        """Topic -> channels that it has by the last that was said of it, and that no declaration names; less than 0: so many that
        are named are there no more."""
        self._moved: dict[int, list[tuple[int, int]]] = {}
        """Topic -> runs [low, high) of what older segments had."""
        self._files: list[Path] = []
        self._lacks = False
        """Something that was confirmed is not there any more."""
        self.end = (log.active, log.size)
        self.torn: int | None = None
        """Where the active segment is to be cut."""
        self.adopted: list[TopicState] = []
        """Topics whose declarations are lost."""
        self.headless = False
        """The active segment lacks declarations that its head should have."""
        self.shortened = False
        """The active segment has lost its end, and with it declarations that the index has."""

    def lose_end(self, end: tuple[int, int], indexed: tuple[int, int]) -> None:
        """Account for what the index has behind the end of the log."""
        segment, size = end
        whole = lostend.whole(self._log, self._index, segment, size)
        count = lostend.give_up(self._index, self._catalog, self._index.beyond(segment, whole, self._log.active))
        rest = self._log.read(segment, whole, size - whole)
        kept = ""
        if rest:
            self._files.append(self._folder.set_aside(_name(segment, whole), rest))
            kept = f", the start of a record kept in {self._files[-1]}"
        self._folder.reports.append(
            f"the log ends at {size} of segment {segment}, the index at {indexed[1]} of {indexed[0]}: "
            f"{count} messages lost{kept}; all others are served"
        )
        self._lacks = True
        self.shortened = segment == self._log.active

    def run(self, position: tuple[int, int]) -> None:
        """Have the index know where every message is."""
        for topic in self._catalog.topics.values():
            self._numbers.begin(topic.id, topic.next)
        before = None
        for segment in [number for number in self._log.numbers if number >= position[0]]:
            if before is not None and segment != before + 1:
                self._numbers.restart()
            before = segment
            offset = position[1] if segment == position[0] else 0
            declared = self._segment(segment, offset)
            if segment != self._log.active:
                self._numbers.ended(segment, self._log.length(segment))
            elif not offset:
                self.headless = not declared >= self._catalog.topics.keys()
        self._flush()

    def _segment(self, segment: int, offset: int) -> set[int]:
        """Returns the topics that it declares with all that they have."""
        declared: set[int] = set()
        ranges = self._catalog.ranges.setdefault(segment, {})
        for item in self._log.scan(segment, offset):
            if isinstance(item, Broken):
                self._broken(segment, item)
            elif item.batch.count:
                self._messages(segment, item, ranges)
            elif self._declaration(item):
                declared.add(item.batch.topic)
        return declared

    def _messages(self, segment: int, item: Found, ranges: dict[int, tuple[int, int]]) -> None:
        batch = item.batch
        topic, first, count = batch.topic, batch.first, batch.count
        end = first + count
        if topic in self._dropped:
            return
        state = self._catalog.topics.get(topic)
        if state is None:
            low, high, so_far = self._orphans.get(topic, (end if batch.moved else first, end, 0))
            self._orphans[topic] = low if batch.moved else min(low, first), max(high, end), so_far + count
        elif state.next < end:
            state.next = end
        held = ranges.get(topic)
        if held is None:
            ranges[topic] = first, end
        elif first < held[0] or end > held[1]:
            ranges[topic] = min(held[0], first), max(held[1], end)
        self._rows.append((topic, first, count, 0, segment, item.offset, item.length))
        if len(self._rows) >= _ROWS:
            self._flush()
        if not batch.moved:
            self._numbers.met(topic, first, end)
        else:
            for run in dense(batch):
                self._note_moved(topic, run.first, run.end)

    def _note_moved(self, topic: int, low: int, high: int) -> None:
        runs = self._moved.setdefault(topic, [])
        if runs and runs[-1][1] == low:
            runs[-1] = runs[-1][0], high
        else:
            runs.append((low, high))

    def _declaration(self, item: Found) -> bool:
        """Whether it names all that its topic has."""
        batch = item.batch
        said = record.declaration(batch)
        if said.segment:
            return False
        self._catalog.apply(batch)
        if said.dropped:
            self._flush()
            self._index.remove_topic(batch.topic)
            self._dropped.add(batch.topic)
            self._orphans.pop(batch.topic, None)
            return True
        self._declared.add(batch.topic)
        self._dropped.discard(batch.topic)  # a later topic, with the number of one that was forgotten
        self._numbers.met(batch.topic, batch.first, batch.first)
        if orphans := self._orphans.pop(batch.topic, None):
            _adopt(self._catalog.topics[batch.topic], orphans[0])
        self._unnamed[batch.topic] = said.total - len(self._catalog.topics[batch.topic].channels) if said.changes else 0
        return not said.changes

    def _flush(self) -> None:
        self._index.add_batches(self._rows)
        self._rows.clear()

    def _broken(self, segment: int, broken: Broken) -> None:
        data = self._log.read(segment, broken.offset, broken.length)
        for piece in pieces(data):
            at = broken.offset + piece.offset
            if segment == self._log.active and not piece.whole and at + piece.length == self.end[1]:
                self.torn, self.end = at, (segment, at)
                self._set_aside(segment, at, piece.length, "are the start of a record that was never confirmed: cut off")
            else:
                self._numbers.damages.append(Damage(segment, at, piece.length, piece))

    def _set_aside(self, segment: int, offset: int, length: int, words: str, after: str = "") -> None:
        """Keep the bytes and report them, unless an earlier recovery has."""
        name = _name(segment, offset)
        data = self._log.read(segment, offset, length)
        if self._folder.has_set_aside(name, data):
            return
        self._files.append(self._folder.set_aside(name, data))
        self._folder.reports.append(f"{length} bytes at {offset} of segment {segment} {words}, kept in {self._files[-1]}{after}")

    def forget_files(self) -> None:
        """Nothing of this recovery was kept: it is reported when it is done again."""
        for path in self._files:
            path.unlink(missing_ok=True)

    # --- the end of the scan ---------------------------------------------------------------------------------

    def settle(self, position: tuple[int, int] | None) -> None:
        """Have the index know all the rest that the scan has found."""
        index, catalog = self._index, self._catalog
        self._numbers.finish()
        damaged = bool(self._numbers.damages) or self.torn is not None or self._lacks
        if catalog.rebuilt or damaged:
            self._adopt_orphans()
        saving.put_declared(index, catalog.topics, self._declared | self._dropped, self._log.active)
        for number in self._orphans.keys() - catalog.topics.keys():
            index.retire(number, self._log.active)
            catalog.retired.add(number)
        catalog.take_unindexed()
        if catalog.rebuilt:
            self._await_moved()
        if catalog.rebuilt or damaged:
            self._say_unnamed()
        for damage in self._numbers.damages:
            self._account(damage)
        if damaged:
            self._leap()
        if position != self.end or damaged:
            index.put_batches([], self.end)
            saving.put_grown(index, catalog.topics, catalog.topics)

    def _adopt_orphans(self) -> None:
        for number, (low, high, count) in self._orphans.items():
            if number in self._catalog.retired:
                continue  # published while it was deleted
            topic = TopicState(number, f"recovered-{number:08x}", high, low)
            self._catalog.topics[number] = topic
            self._declared.add(number)
            self.adopted.append(topic)
            self._folder.reports.append(
                f"the name of a topic is damaged: its {count} messages wait in topic {topic.name!r}; its channels are not known"
            )

    def _await_moved(self) -> None:
        """With the index gone, it is not known which channels had not finished what was moved: each past it gets it again."""
        for number, runs in self._moved.items():
            topic = self._catalog.topics.get(number)
            for channel in topic.channels.values() if topic else ():
                self._index.put_retries(_to_try_again(channel, runs))

    def _say_unnamed(self) -> None:
        for number, count in self._unnamed.items():
            topic = self._catalog.topics.get(number)
            if topic is None or not count:
                continue
            if count > 0:
                words = f"the names of {count} channels of topic {topic.name!r} are damaged: they are not known"
            else:
                words = f"{-count} channels of topic {topic.name!r} that were deleted are there again: the record that says which"
                words += " is damaged"
            self._folder.reports.append(words)

    def _account(self, damage: Damage) -> None:
        """Let nobody wait for what is damaged, and report what that is."""
        count = 0 if damage.piece.topic in self._catalog.retired else damage.unknown
        for topic, low, high in damage.lost:
            if topic in self._catalog.retired or self._index.count(topic, low, high):
                continue  # it was deleted; or moved, and another copy is good
            # What was moved, every channel would have got.
            moved = self._catalog.rebuilt and damage.piece.moved and damage.piece.numbers == (topic, low, high)
            count += damage.piece.with_body if moved else unfinished.count(self._catalog, self._index, topic, low, high)
            self._index.mark_damaged(topic, low, high)
        words, after = say_damaged(count)
        if damage.is_end:
            if count:
                self._folder.reports.append(f"segment {damage.segment} ends at {damage.offset}: {count} messages lost{after}")
            return
        self._set_aside(damage.segment, damage.offset, damage.length, words, after)

    def _leap(self) -> None:
        """What is damaged may have been delivered under its numbers: never use them for another message."""
        now = time.time_ns()
        for topic in self._catalog.topics.values():
            leap = max(LEAP, now - topic.next)
            self._index.add_batches([Row(topic.id, topic.next, leap, EMPTIED, 0, 0, 0)])
            topic.next += leap


def _absent(numbers: list[int]) -> str:
    """The segments between others that are not there, in words. They went, or somebody lost them: the log does not say."""
    gaps = [(low + 1, high - 1) for low, high in pairwise(numbers) if high > low + 1]
    words = [f"{low}" if low == high else f"{low} to {high}" for low, high in gaps]
    return f"segment{'s' if words[1:] or 'to' in words[0] else ''} {', '.join(words)}" if words else ""


def _name(segment: int, offset: int) -> str:
    """Under which damaged bytes are set aside."""
    return f"{segment:010}-{offset}"


def _to_try_again(channel: ChannelState, runs: list[tuple[int, int]]) -> Iterator[RetryRow]:
    for low, high in runs:
        for seq in range(low, min(high, channel.cursor)):
            yield RetryRow(channel.id, seq, 0, 0)


def _adopt(topic: TopicState, low: int) -> None:
    """Its first declaration is damaged: whoever is named in a later one may not have had what came before, from ``low`` on.

    The later one says which number is next, which is above those of all that came before it."""
    topic.pumped = min(topic.pumped, low)
    for channel in topic.channels.values():
        channel.cursor = min(channel.cursor, low)


def _part_namesakes(folder: ReadOnlyFolder, catalog: Catalog) -> list[TopicState]:
    """Give the older of two topics with one name another: clients could reach one of them only. It was deleted, and the record
    that said so is damaged, or is gone with the index."""
    newest: dict[str, TopicState] = {}
    parted: list[TopicState] = []
    for topic in catalog.topics.values():
        other = newest.setdefault(topic.name, topic)
        if other is not topic:
            older, newest[topic.name] = (topic, other) if topic.next < other.next else (other, topic)
            parted.append(older)
    for topic in parted:
        was, topic.name = topic.name, f"recovered-{topic.id:08x}"
        folder.reports.append(f"there are two topics {was!r}: what the older one has waits in topic {topic.name!r}")
    return parted
