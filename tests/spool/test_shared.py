"""Several collectors of one channel land each message once, whoever is killed or paused in the middle."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.errors import WrongUse
from framework.message import Batch
from framework.spool import Spool, SpoolError, SpoolFull, files, segment
from framework.spool.storage import Remote
from framework.spool.told import BEGINS, told
from framework.testing.servers import Server
from tests.spool.rows import NOTED, MakeBatch, ids
from tests.spool.test_kill import SCRIPT, landed, wait_until_empty


def shared(folder: Path, **more: object) -> Spool:
    return Spool(folder, shared=True, **more)  # type: ignore[arg-type]


def test_the_same_messages_landed_by_two_collectors_are_there_once(tmp_path: Path, batch: MakeBatch) -> None:
    with shared(tmp_path) as one, shared(tmp_path) as two:
        assert one.land(batch(0, 100)) == 100
        assert two.land(batch(0, 100)) == 0
        assert two.land(batch(50, 150)) == 50
        assert one.land(batch(0, 160)) == 10
        assert Counter(ids(one)) == Counter(f"{n:016x}" for n in range(160))
        assert [found.number for found in segment.listing(one.folder)] == [1, 2, 3]


def test_what_another_collector_lands_just_before_is_taken_out(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a collector is paused past its lease, with its file written and no number taken."""
    first, second = shared(tmp_path), shared(tmp_path)
    name, paused = files._name, []

    def pausing(*args: object, **more: object) -> object:
        if not paused:
            paused.append(True)
            assert second.land(batch(5, 12)) == 7
        return name(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "_name", pausing)
    assert first.land(batch(0, 10)) == 5
    assert Counter(ids(first)) == Counter(f"{n:016x}" for n in range(12))


def test_a_collector_paused_with_its_number_taken_is_helped_and_both_know_its_rows(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = shared(tmp_path), shared(tmp_path)
    name, paused = files._name_claimed, []

    def pausing(*args: object) -> object:
        if not paused:
            paused.append(True)
            assert second.land(batch(0, 12)) == 2, "the others are durable, so they are finished here"
        return name(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "_name_claimed", pausing)
    assert first.land(batch(0, 10)) == 10
    assert [(one.number, one.rows) for one in segment.listing(first.folder)] == [(1, 10), (2, 2)]


def test_what_is_dropped_because_another_has_it_is_durable_first(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one may be killed between a name and its sync, and a power cut take the name of what was finished here."""
    synced: list[Path] = []
    one, two = shared(tmp_path), shared(tmp_path)
    two.open()
    one.land(batch(0, 10))
    monkeypatch.setattr(files, "sync_folder", synced.append)
    assert two.land(batch(0, 10)) == 0
    assert synced == [two.folder]


def test_who_was_away_while_others_landed_what_is_deleted_by_now_takes_its_batch_for_new_no_more(
    tmp_path: Path, batch: MakeBatch
) -> None:
    """The ids of those segments are not to be learnt any more, and one of its messages may be among them."""
    with shared(tmp_path, remember=0) as away, shared(tmp_path, remember=0) as other:
        away.land(batch(0, 1))
        for n in range(1, 10):
            other.land(batch(n, n + 1))
        segment.trim(other.folder, before=9, keep_rows=1)
        with pytest.raises(
            SpoolError, match="segments 2 to 8 were landed by others, and deleted, since this collector last looked"
        ):
            away.land(batch(5, 12))
        assert away.land(batch(10, 12)) == 2, "what was not finished by the others comes again"


@pytest.mark.parametrize("gone", [0, 2, 3, 4])
def test_of_several_that_others_landed_none_may_lack(tmp_path: Path, batch: MakeBatch, gone: int) -> None:
    with shared(tmp_path) as one, shared(tmp_path) as two:
        assert two.land(batch(0, 1)) == 1
        for n in range(1, 5):
            assert one.land(batch(n, n + 1)) == 1
        if gone:
            segment.listing(one.folder)[gone - 1].path.unlink()  # type: ignore[union-attr]
            with pytest.raises(SpoolError, match=f"segments {gone} to {gone} were landed by others, and deleted, since"):
                two.land(batch(0, 6))
        else:
            assert two.land(batch(0, 6)) == 1


def test_a_collector_alone_and_one_that_shares_do_not_go_together(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path), pytest.raises(WrongUse, match="or say shared=True in all of them"):
        shared(tmp_path).land(batch(0, 1))
    with shared(tmp_path), pytest.raises(WrongUse, match="is this collector already"):
        Spool(tmp_path).land(batch(0, 1))


@pytest.mark.parametrize("ahead", [0, 365 * 86400])
def test_one_that_opens_leaves_the_others_unfinished_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """Wherever its host's clock is."""
    now = time.time() + ahead
    monkeypatch.setattr(time, "time", lambda: now)
    with shared(tmp_path) as one:
        (one.folder / "new.tmp").write_bytes(b"half")
        (one.folder / "old.tmp").write_bytes(b"half")
        os.utime(one.folder / "old.tmp", (0, 0))
        shared(tmp_path).open()
        assert sorted(path.name for path in one.folder.glob("*.tmp")) == ["new.tmp"]


def test_a_limit_counts_what_all_of_them_have_landed(tmp_path: Path, batch: MakeBatch) -> None:
    with shared(tmp_path, max_bytes=30_000) as one, shared(tmp_path, max_bytes=30_000) as two:
        two.land(batch(100, 101))
        one.land(batch(0, 10, body=b"b" * 5000))
        with pytest.raises(SpoolFull):
            two.land(batch(10, 20))


def _land_all(folder: Path, seed: int, batches: list[Batch]) -> None:
    chance = random.Random(seed)
    spool = shared(folder)
    for one in chance.sample(batches, len(batches)):
        spool.land(Batch(chance.sample(list(one), len(one))))


@pytest.mark.long_run
def test_many_collectors_that_get_the_same_messages_and_are_killed_land_each_once(tmp_path: Path, batch: MakeBatch) -> None:
    chance = random.Random(7)
    batches = [batch(first, first + chance.randrange(1, 60)) for first in range(0, 9000, 25)]
    wanted = Counter(f"{n:016x}" for n in {int(one.id, 16) for some in batches for one in some})
    fork = multiprocessing.get_context("fork")

    def start(seed: int) -> multiprocessing.process.BaseProcess:
        process = fork.Process(target=_land_all, args=(tmp_path, seed, batches))
        process.start()
        return process

    running = [start(seed) for seed in range(4)]
    killed = 0
    for seed in range(4, 34):
        time.sleep(chance.uniform(0.0, 0.05))
        victim = running.pop(chance.randrange(4))
        victim.kill()
        victim.join()
        killed += victim.exitcode == -signal.SIGKILL
        running.append(start(seed))
    for process in running:
        process.join(60)
        assert process.exitcode == 0
    assert killed >= 20
    spool = shared(tmp_path)
    spool.open()  # settles what the last kill left
    found = segment.listing(spool.folder)
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    assert Counter(ids(spool)) == wanted


@pytest.mark.real
def test_collectors_of_one_channel_killed_between_durable_and_finished_land_each_message_once(
    start_nsqd: Callable[..., Server], tmp_path: Path
) -> None:
    nsqd = start_nsqd("--msg-timeout=2s")
    sent = Counter(b"m%d" % n for n in range(20_000))
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http("/channel/create?topic=orders&channel=archive", b"")
    nsqd.http("/mpub?topic=orders", b"\n".join(sent))
    command = [sys.executable, str(SCRIPT), str(tmp_path / "spool"), f"nsq://{nsqd.address}"]
    dying = [subprocess.Popen([*command, "durable", "shared", "0"]) for _ in range(3)]
    staying = paused = dying[0]
    try:
        assert [one.wait(40) for one in dying] == [-signal.SIGKILL] * 3
        before = wait_until_landed(tmp_path, 1)
        staying, paused = (subprocess.Popen([*command, "never", "shared"]) for _ in range(2))
        wait_until_landed(tmp_path, before + 1000)
        paused.send_signal(signal.SIGSTOP)
        time.sleep(4.5)  # for longer than its leases
        paused.send_signal(signal.SIGCONT)
        wait_until_empty(nsqd, staying)
        assert nsqd.channel_stats("orders", "archive")["timeout_count"] > 0, "some did come again, to another one"
    finally:
        for one in (*dying, staying, paused):
            one.kill()
            one.wait()
    assert landed(tmp_path) == sent


def wait_until_landed(tmp_path: Path, wanted: int) -> int:
    until = time.monotonic() + 40
    while (rows := sum(one.rows for one in segment.listing(tmp_path / "spool" / "worker"))) < wanted:
        assert time.monotonic() < until
        time.sleep(0.02)
    return rows


def empty(root: Path, how: str) -> None:
    """By hand, while collectors live: the files of the collector, its folder, or all of the spool."""
    if how == "its files":
        for path in (root / "main").iterdir():
            path.unlink()
        return
    for path in [root / "main"] if how == "its folder" else list(root.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("how", ["its files", "its folder", "the spool"])
@pytest.mark.parametrize("landed_anew", [1, 3])
def test_who_lives_on_where_all_was_removed_learns_what_others_have_landed_since(
    tmp_path: Path, batch: MakeBatch, how: str, landed_anew: int
) -> None:
    """Fewer segments than it knew of, or more."""
    with shared(tmp_path) as living, shared(tmp_path) as anew:
        for n in range(2):
            living.land(batch(n, n + 1))
        empty(tmp_path, how)
        for n in range(landed_anew):
            assert anew.land(batch(10 * n, 10 * n + 10)) == 10
        assert living.land(batch(0, 10 * landed_anew + 1)) == 1, "the rest came to it again"
        assert anew.land(batch(0, 10 * landed_anew + 1)) == 0
        numbers = [one.number for one in segment.listing(living.folder)]
    assert numbers == list(range(1, landed_anew + 2)), "and no number is left out, which a query would miss"


def test_who_lives_on_where_the_segments_alone_were_removed_learns_what_others_have_landed_since(
    tmp_path: Path, batch: MakeBatch
) -> None:
    with shared(tmp_path) as living:
        for n in range(2):
            living.land(batch(n, n + 1))
        for name in (NOTED, *(one.path.name for one in segment.listing(living.folder))):
            (tmp_path / "main" / name).unlink()
        with shared(tmp_path) as anew:
            assert anew.land(batch(10, 20)) == 10
        assert living.land(batch(10, 20)) == 0


def test_a_collector_whose_folder_was_emptied_holds_it_no_more_where_another_has_taken_it(
    tmp_path: Path, batch: MakeBatch
) -> None:
    with Spool(tmp_path) as first:
        first.land(batch(0, 3))
        empty(tmp_path, "its files")
        with Spool(tmp_path) as second:
            second.land(batch(3, 6))
            with pytest.raises(WrongUse, match="is this collector already"):
                first.land(batch(3, 6))
            assert len(ids(second)) == 3


def test_a_collector_alone_goes_on_behind_what_was_removed_for_queries_that_had_read_it(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        for n in range(3):
            spool.land(batch(n, n + 1))
        spool._forget()  # as after a write that failed
        assert spool.land(batch(0, 3)) == 0
        assert told(spool.folder, BEGINS) is None
        empty(tmp_path, "its files")
        assert spool.land(batch(3, 4)) == 1
        assert [one.number for one in segment.listing(spool.folder)] == [4]
        assert told(spool.folder, BEGINS) == 4


def test_where_a_person_removed_the_newest_it_is_landed_again(tmp_path: Path, batch: MakeBatch) -> None:
    with shared(tmp_path) as living:
        for n in range(3):
            living.land(batch(n, n + 1))
        for name in (NOTED, segment.listing(living.folder)[-1].path.name):
            (living.folder / name).unlink()  # type: ignore[union-attr]
        assert living.land(batch(0, 3)) == 1


@pytest.mark.parametrize("kind", ["folder", "storage"])
def test_nothing_is_learnt_anew_where_all_is_as_it_was(
    tmp_path: Path, memory: Remote, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It would cost a look into each segment for each batch."""
    with shared(tmp_path if kind == "folder" else memory) as spool:
        spool.land(batch(0, 1))
        monkeypatch.setattr(segment, "keys", lambda *_, **__: pytest.fail("learnt anew"))
        for n in range(1, 4):
            assert spool.land(batch(n - 1, n + 1)) == 1


def test_one_whose_only_segment_was_removed_says_with_which_number_it_went_on(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 1))
        empty(tmp_path, "its files")
        assert spool.land(batch(1, 2)) == 1
        assert [one.number for one in segment.listing(spool.folder)] == [2]
        assert told(spool.folder, BEGINS) == 2
