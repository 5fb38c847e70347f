"""Segments in a storage: each message is there once, whichever write its collector died at, paused at, or had no answer to."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from framework.message import Batch
from framework.spool import Spool, SpoolError, numbered, segment
from framework.spool.root import collectors, ensure_epoch, epoch
from framework.spool.storage import Remote, StorageError
from tests.spool.rows import MakeBatch, ids
from tests.storages import Killed, Memory, fails_at


@pytest.fixture(autouse=True)
def _as_in_another_process() -> None:
    forget()


def forget() -> None:
    """What is known of storages in this process alone."""
    for known in (numbered._floors, numbered._tidied, numbered._run_lists, numbered._marked, numbered._looked_into):
        known.clear()


def memory_of(folder: Remote) -> Memory:
    assert isinstance(folder.storage, Memory)
    return folder.storage


def names(folder: Remote) -> list[str]:
    return [entry.name for entry in folder.list()]


def check(spool: Spool, first: int, last: int) -> None:
    """The messages ``first`` to ``last`` are there once, in segments without a gap, which are listed as what they hold."""
    forget()
    found = segment.listing(spool.folder)
    assert [one.number for one in found] == list(range(found[0].number, found[0].number + len(found)))
    assert [one.rows for one in found] == [segment.read(one.path).num_rows for one in found]
    assert Counter(ids(spool)) == Counter(f"{n:016x}" for n in range(first, last))


def test_a_number_is_a_name_and_its_rows_are_in_another(memory: Remote, batch: MakeBatch) -> None:
    with Spool(memory) as spool:
        spool.land(batch(0, 3))
        spool.land(batch(3, 5))
    found = [name for name in names(memory / "main") if name[0] == "0"]
    assert [name for name in found if name.endswith(".arrow")] == [f"{1:020d}.arrow", f"{2:020d}.arrow"]
    assert [name[:22] for name in found if name.endswith(".rows")] == [f"{1:020d}-3", f"{2:020d}-2"]
    assert [(one.number, one.rows) for one in segment.listing(memory / "main")] == [(1, 3), (2, 2)]
    assert collectors(memory) == ["main"]


def test_the_epoch_is_minted_once(memory: Remote) -> None:
    assert epoch(memory) is None
    minted = ensure_epoch(memory)
    assert ensure_epoch(memory) == epoch(memory) == minted
    assert ensure_epoch(Remote(Memory())) != minted


def test_a_listing_opens_no_segment(memory: Remote, batch: MakeBatch) -> None:
    with Spool(memory) as spool:
        for n in range(5):
            spool.land(batch(n, n + 1))
    forget()
    memory_of(memory).verbs.clear()
    assert len(segment.listing(memory / "main")) == 5
    assert [verb for verb, _ in memory_of(memory).verbs] == ["read", "list", "list"], "where it may begin, runs, segments"
    assert memory_of(memory).verbs[0][1].endswith("/floor")
    assert len(segment.listing(memory / "main")) == 5
    assert [verb for verb, _ in memory_of(memory).verbs[3:]] == ["list"], "runs are looked for every half minute"


def test_a_second_process_shares_without_being_told(memory: Remote, batch: MakeBatch) -> None:
    with Spool(memory) as one, Spool(memory) as two:
        assert one.land(batch(0, 100)) == 100
        assert two.land(batch(50, 150)) == 50
        assert one.land(batch(0, 160)) == 10
        check(one, 0, 160)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_collector_killed_at_any_write_loses_and_doubles_nothing(memory: Remote, batch: MakeBatch, when: str) -> None:
    storage = memory_of(memory)
    nth = 0
    while True:  # each write of opening and of landing in turn
        nth += 1
        storage.objects.clear()
        forget()
        storage.fault = fails_at(nth, when, Killed)
        try:
            with Spool(memory) as spool:
                spool.land(batch(0, 10))
                spool.land(batch(5, 20))
        except Killed:
            storage.fault = lambda *_: None
            with Spool(memory) as again:  # nothing was finished: all of it comes again
                again.land(batch(0, 10))
                again.land(batch(5, 20))
                check(again, 0, 20)
        else:
            break
    assert nth == {"before": 9, "after": 8}[when], "two epochs, a try at one, `remember`, and twice a segment and its rows"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_write_without_an_answer_is_looked_for(memory: Remote, batch: MakeBatch, when: str) -> None:
    storage = memory_of(memory)
    for nth in range(1, 9 if when == "before" else 8):
        storage.objects.clear()
        forget()
        storage.fault = fails_at(nth, when, StorageError)
        failed = 0
        spool = Spool(memory)
        for one in (batch(0, 10), batch(5, 20)):
            try:
                spool.land(one)
            except SpoolError:
                failed += 1
                spool.land(one)
        check(spool, 0, 20)
        # A segment that is there is landed, with an answer or without; its rows are told by others if need be.
        assert failed == (nth <= 4 or nth in (5, 7) if when == "before" else nth <= 3)


def test_a_put_that_arrives_late_has_its_number_or_none(memory: Remote, batch: MakeBatch) -> None:
    """Its sender was told of an error, and what it sent was on its way."""
    storage = memory_of(memory)
    late: list[tuple[str, bytes]] = []
    put = storage.put

    def delayed(name: str, content: object, *, over: bool = False) -> bool:
        if name.endswith(".arrow") and not late:
            late.append((name, bytes(content)))  # type: ignore[call-overload]
            raise StorageError(5, "no answer")
        return put(name, content, over=over)

    storage.put = delayed  # type: ignore[method-assign]
    with Spool(memory) as spool, Spool(memory) as other:
        with pytest.raises(SpoolError, match="no answer"):
            spool.land(batch(0, 10))
        assert put(*late[0]), "it arrives before the batch comes again"
        assert other.land(batch(0, 12)) == 2
        assert spool.land(batch(0, 12)) == 0
        check(spool, 0, 12)
        late.clear()
        with pytest.raises(SpoolError, match="no answer"):
            spool.land(batch(12, 20))
        assert other.land(batch(12, 20)) == 8
        assert not put(*late[0]), "it arrives after that: its number is taken"
        assert spool.land(batch(12, 20)) == 0
        check(spool, 0, 20)


def paused(memory: Remote, meanwhile: object, *, after: bool = False) -> None:
    """The next put of a segment waits for what ``meanwhile`` does, before it or with its answer on the way."""
    storage = memory_of(memory)

    def fault(when: str, verb: str, name: str) -> None:
        if (when == "after") == after and verb == "put" and name.endswith(".arrow"):
            storage.fault = lambda *_: None
            meanwhile()  # type: ignore[operator]

    storage.fault = fault


def test_what_a_paused_collector_puts_after_the_others_went_on_is_refused(memory: Remote, batch: MakeBatch) -> None:
    with Spool(memory) as slow, Spool(memory) as other:
        slow.open()
        paused(memory, lambda: other.land(batch(5, 12)))
        assert slow.land(batch(0, 10)) == 5
        check(slow, 0, 12)


def test_a_number_that_was_read_and_deleted_is_not_to_be_had(memory: Remote, batch: MakeBatch) -> None:
    """Nobody would look under it again, and its messages would be finished: they would be lost."""

    def meanwhile() -> None:
        for n in range(10, 20):
            other.land(batch(n, n + 1))
        assert segment.trim(memory / "main", before=9, keep_rows=1) == 8

    with Spool(memory) as slow, Spool(memory) as other:
        slow.open()
        paused(memory, meanwhile)
        with pytest.raises(SpoolError, match="segments 1 to 8 were landed by others, and deleted, since"):
            slow.land(batch(0, 3))
        assert [one.number for one in segment.listing(memory / "main")] == [9, 10]
        assert slow.land(batch(0, 3)) == 3, "it comes again"
        assert [one.number for one in segment.listing(memory / "main")] == [9, 10, 11]


def test_a_collector_knows_its_own_segment_though_it_was_deleted_before_the_answer(memory: Remote, batch: MakeBatch) -> None:
    def meanwhile() -> None:
        for n in range(10, 13):
            other.land(batch(n, n + 1))
        assert segment.trim(memory / "main", before=3, keep_rows=1) == 2
        raise StorageError(5, "no answer")

    with Spool(memory) as slow, Spool(memory) as other:
        slow.open()
        paused(memory, meanwhile, after=True)
        assert slow.land(batch(0, 3)) == 3, "it was there, and has been read"
        assert [one.number for one in segment.listing(memory / "main")] == [3, 4]


def test_a_storage_that_says_taken_of_what_nobody_has_is_asked_again(memory: Remote, batch: MakeBatch) -> None:
    """S3 answers 409 to two that put at once, and then neither may have it."""
    storage = memory_of(memory)
    put = storage.put
    refused: list[str] = []

    def refusing(name: str, content: object, *, over: bool = False) -> bool:
        if name.endswith(".arrow") and not refused:
            refused.append(name)
            return False
        return put(name, content, over=over)

    storage.put = refusing  # type: ignore[method-assign]
    with Spool(memory) as spool:
        with pytest.raises(SpoolError, match="the number 1 is taken, and there is no segment of it"):
            spool.land(batch(0, 3))
        assert spool.land(batch(0, 3)) == 3
        check(spool, 0, 3)


def test_a_storage_that_puts_over_what_is_there_is_refused(memory: Remote, batch: MakeBatch) -> None:
    storage = memory_of(memory)
    put = storage.put
    storage.put = lambda name, content, over=False: put(name, content, over=True)  # type: ignore[method-assign]
    with pytest.raises(SpoolError, match="memory://tests/spool ignores If-None-Match, so two collectors could take one number"):
        Spool(memory).land(batch(0, 3))
    assert [name for name in storage.objects if name.endswith(".arrow")] == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_whoever_is_killed_while_it_deletes_leaves_what_the_others_can_read(memory: Remote, batch: MakeBatch, when: str) -> None:
    storage = memory_of(memory)
    nth = 0
    while True:
        nth += 1
        storage.objects.clear()
        forget()
        with Spool(memory) as spool:
            for n in range(6):
                spool.land(batch(n, n + 1))
            storage.fault = fails_at(nth, when, Killed)
            try:
                segment.trim(memory / "main", before=5, keep_rows=1)
            except Killed:
                storage.fault = lambda *_: None
                first = segment.listing(memory / "main")[0].number
                assert first <= 5
                check(spool, first - 1, 6)
                assert segment.trim(memory / "main", before=5, keep_rows=1) == 5 - first
                check(spool, 4, 6)
                assert spool.land(batch(6, 8)) == 2
                check(spool, 4, 8)
            else:
                break
    assert nth > 8


def test_a_listing_begins_where_there_is_something(memory: Remote, batch: MakeBatch) -> None:
    with Spool(memory) as spool:
        for n in range(8):
            spool.land(batch(n, n + 1))
        segment.trim(memory / "main", before=7, keep_rows=1)
    forget()
    assert [one.number for one in segment.listing(memory / "main")] == [7, 8]
    assert numbered._floors[memory / "main"] == 7
    memory_of(memory).objects.clear()
    with Spool(memory) as anew:
        anew.land(batch(0, 3))
        assert [one.number for one in segment.listing(memory / "main")] == [1], "another spool under the same name"


def test_the_number_of_a_deleted_segment_is_forgotten_after_a_day(memory: Remote, batch: MakeBatch) -> None:
    storage = memory_of(memory)
    with Spool(memory) as spool:
        for n in range(8):
            spool.land(batch(n, n + 1))
        segment.trim(memory / "main", before=4, keep_rows=1)
        storage.now += 3600
        spool.land(batch(8, 9))
        forget()
        segment.trim(memory / "main", before=5, keep_rows=1)
        left = [name for name in names(memory / "main") if name.endswith(".arrow")]
        assert [int(name[:20]) for name in left] == list(range(1, 10))
        storage.now += 86000
        spool.land(batch(9, 10))
        forget()
        segment.trim(memory / "main", before=6, keep_rows=1)
        left = [name for name in names(memory / "main") if name.endswith(".arrow")]
        assert [int(name[:20]) for name in left] == list(range(4, 11))
        check(spool, 5, 10)


def test_the_rows_of_a_segment_whose_writer_was_killed_are_told_by_whoever_looks(memory: Remote, batch: MakeBatch) -> None:
    storage = memory_of(memory)
    with Spool(memory) as spool:
        spool.land(batch(0, 7))
    (told,) = [name for name in storage.objects if name.endswith(".rows")]
    del storage.objects[told]
    forget()
    assert [one.rows for one in segment.listing(memory / "main")] == [7]
    assert told in storage.objects


def test_a_segment_cut_short_is_named(memory: Remote, batch: MakeBatch) -> None:
    storage = memory_of(memory)
    with Spool(memory) as spool:
        spool.land(batch(0, 7))
    name = f"spool/main/{1:020d}.arrow"
    storage.objects[name] = storage.objects[name][0][:200], storage.now
    (one,) = segment.listing(memory / "main")
    with pytest.raises(SpoolError, match=f"memory://tests/{name} is damaged"):
        segment.read(one.path)


def test_a_full_spool_takes_nothing_more_until_some_is_deleted(memory: Remote, batch: MakeBatch) -> None:
    spool = Spool(memory, max_bytes=20_000)
    for n in range(0, 10, 5):
        spool.land(batch(n, n + 5, body=b"x" * 2000))
    with pytest.raises(SpoolError, match="is full"):
        spool.land(batch(10, 15))
    segment.trim(spool.folder, 2, 1)
    assert spool.land(batch(10, 15)) == 5


def test_many_that_share_and_are_killed_anywhere_land_each_message_once(memory: Remote, batch: MakeBatch) -> None:
    """A fault at every twentieth write: killed before, killed after, no answer before, no answer after."""
    storage, chance = memory_of(memory), random.Random(11)
    batches = [batch(first, first + chance.randrange(1, 60)) for first in range(0, 4000, 25)]
    wanted = {int(one.id, 16) for some in batches for one in some}
    faults = [0]

    def fault(when: str, verb: str, name: str) -> None:
        if chance.random() < 0.05:
            faults[0] += 1
            raise Killed if chance.random() < 0.5 else StorageError(5, "no answer")

    def collect(seed: int) -> None:
        own = random.Random(seed)
        spool = Spool(memory)
        for one in own.sample(batches, len(batches)):
            while True:
                try:
                    spool.land(Batch(own.sample(list(one), len(one))))
                    break
                except Killed:
                    spool = Spool(memory)
                except SpoolError:
                    pass

    storage.fault = fault
    threads = [threading.Thread(target=collect, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive(), "not all was landed yet"
    storage.fault = lambda *_: None
    assert faults[0] >= 20
    forget()
    spool = Spool(memory)
    found = segment.listing(spool.folder)
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    assert Counter(ids(spool)) == Counter(f"{n:016x}" for n in wanted)


def test_a_clock_that_is_ahead_of_the_storages_deletes_nothing_before_its_time(
    memory: Remote, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)  # of the collector's machine
    spool = Spool(memory, retention=600, window=1, remember=0)
    for n in range(4):
        spool._expire_at = 0.0
        spool.land(batch(n, n + 1))
    check(spool, 0, 4)
