"""What is kept of messages that are finished many at a time: each of them once, with the times of its run."""

from __future__ import annotations

import re
import sqlite3
import textwrap
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from framework.history import search, store, writer
from framework.history.rows import Entry
from framework.history.store import Store
from framework.history.writer import Writer
from framework.hooks import Finished
from framework.testing.workers import working

SHOP = """
    import time
    import gevent
    from framework import Message, Middleware, Retry, Skip, handler, publish_many

    class Feed(Middleware):
        def start(self):
            publish_many("orders", [*("fast" for _ in range(3000)), "again", "skip", "block", *("fast" for _ in range(10))])
            publish_many("few", ["fast", "fast", "wait", "fast"])

    def work(message):
        if message.body == b"again" and message.attempts == 1: raise Retry(delay=0)
        if message.body == b"skip": raise Skip("not ours")
        if message.body == b"block": time.sleep(0.05)
        if message.body == b"wait": gevent.sleep(30)

    @handler("orders", "billing", middleware=[Feed()], max_in_flight=10000, timeout=40)
    def bill(message: Message):
        work(message)

    @handler("few", "one", concurrency=1, max_in_flight=10, timeout=40)
    def one(message: Message):
        work(message)
"""


def test_each_message_is_in_it_once_with_its_times(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    file = tmp_path / "history.db"
    with working("run", "shop", "--broker", "memory://x", "--history", str(file), "--drain", "0.5", cwd=tmp_path) as worker:
        worker.wait_until(lambda: file.exists() and len(search(file, handler="orders/*", limit=5000)) == 3014)
        worker.wait_until(lambda: len(search(file, handler="few/one")) == 2)  # while the third runs
        found = search(file, handler="orders/billing", limit=5000)
        worker.stop()
    finished = [one for one in found if one["outcome"] == "finished"]
    assert len({one["id"] for one in finished}) == len(finished) == 3013
    assert [one["started"] for one in found] == sorted((one["started"] for one in found), reverse=True)
    [again] = [one for one in found if one["outcome"] == "requeued"]
    assert Counter(one["attempt"] for one in finished) == {1: 3012, 2: 1}
    assert [one["attempt"] for one in search(file, id=again["id"], handler="orders/billing")] == [2, 1]
    [skipped] = search(file, exception="not ours")
    assert (skipped["outcome"], skipped["exception"]) == ("finished", "framework.errors.Skip")
    slow = [one for one in finished if one["seconds"] >= 0.05]
    assert len(slow) >= 1
    assert sum(one["seconds"] for one in finished) < 10, "those of the others are not counted into each"
    lasted = max(one["started"] + one["seconds"] for one in finished) - min(one["started"] for one in finished)
    assert sum(one["seconds"] for one in finished) <= lasted + 0.01, "one slot has made all calls, one after another"


def test_what_is_dropped_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A disk that hangs: what is over the memory that it may take goes, the oldest first."""
    caplog.set_level("INFO")
    monkeypatch.setattr(writer, "SIZE", 100_000)
    file = tmp_path / "history.db"
    one = Writer(file, age=3600, size=1 << 30)
    hangs, on = threading.Event(), threading.Event()
    write = one._store.write

    def hang(items: list[Entry]) -> None:
        hangs.set()
        assert on.wait(20)
        write(items)

    monkeypatch.setattr(one._store, "write", hang)
    one.begin()
    now = time.time()
    for number in range(1000):
        one.put((b"%d" % number, "orders/billing", "a:4150", 1, "finished", ("", ""), now + number, now + number))
        if number == 0:
            assert hangs.wait(20)
    on.set()
    assert one.flush(20)
    one.put((b"last", "orders/billing", "a:4150", 1, "finished", ("", ""), now + 2000, now + 2000))
    assert one.flush(20)
    found = {row["id"] for row in search(file, limit=2000)}
    assert {"0", "999", "last"} <= found
    assert 100 < len(found) < 200
    [warning, info] = [record.getMessage() for record in caplog.records]
    assert "it takes less than comes" in warning
    assert f"is written again; {1001 - len(found)} messages" in info


def test_ids_of_no_single_line_are_kept_as_well(tmp_path: Path) -> None:
    from framework.handler import make_spec
    from framework.history.watch import Watch

    file = tmp_path / "history.db"
    one = Writer(file, age=3600, size=1 << 30)
    watch = Watch(make_spec(lambda message: None, "orders", "billing", {}), one)
    watch.start()
    watch.finished(Finished("a:4150", 1, [b"a\nb", b"c"], 1e9 * 2, 1e9 * 2 + 1))
    assert one.flush(20)
    assert [(row["id"], row["seconds"]) for row in search(file)] == [("c", 0.5), ("a\nb", 0.5)]


def test_a_clock_that_jumps_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, real, jump = tmp_path / "history.db", time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    one = Store(file, age=3600, size=1 << 30)

    def write(id_: bytes) -> None:
        one.write([(id_, "orders/billing", "a:4150", 1, "finished", ("", ""), time.time(), time.time())])

    write(b"before")
    jump = 5 * 365 * 86400.0
    write(b"wrong")
    jump = 0.0
    write(b"after")
    assert {row["id"] for row in search(file)} == {"before", "wrong", "after"}
    assert [record.getMessage()[:37] for record in caplog.records] == [
        "the clock was set by +157680000 s: fo",
        "the clock was set by -157680000 s: fo",
    ]
    monkeypatch.setattr(store, "HELD", 0.0)
    one._held_until = 0.0
    write(b"old")
    monkeypatch.setattr(one, "_age", -1.0)
    write(b"now")
    assert {row["id"] for row in search(file)} <= {"wrong", "now"}, "what is too old goes all the same, an hour later"
    one.close()


def test_a_batch_is_one_run_and_each_of_its_messages_has_taken_all_of_it(tmp_path: Path) -> None:
    shop = """
        import time
        from framework import Batch, Middleware, Skip, handler, publish_many

        class Feed(Middleware):
            def start(self): publish_many("orders", [*map(str, range(98)), "skip", "bad", *map(str, range(98, 198))])

        @handler("orders", "billing", batch=100, linger=5, middleware=[Feed()])
        def bill(messages: Batch):
            time.sleep(0.2)
            for message in messages:
                if message.body == b"skip": messages.fail(message, Skip("not ours"))
                if message.body == b"bad" and message.attempts == 1: messages.fail(message, ValueError("no"))
    """
    (tmp_path / "shop.py").write_text(textwrap.dedent(shop))
    file = tmp_path / "history.db"
    with working("run", "shop", "--broker", "memory://x", "--history", str(file), cwd=tmp_path) as worker:
        worker.wait_until(lambda: file.exists() and len(search(file, limit=5000)) == 201)
        assert worker.stop() == 0
    found = search(file, limit=5000)
    assert Counter((one["outcome"], one["attempt"]) for one in found) == {
        ("finished", 1): 199,
        ("requeued", 1): 1,
        ("finished", 2): 1,
    }
    assert len({one["id"] for one in found}) == 200
    assert all(one["seconds"] > 0.19 for one in found)
    assert [one["exception"] for one in found if one["words"] == "not ours"] == ["framework.errors.Skip"]
    with closing(sqlite3.connect(file)) as db:
        assert [count for (count,) in db.execute("SELECT count(*) FROM blocks WHERE well = 2")] == [1]


def test_what_is_finished_just_before_the_end_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP.replace("timeout=40", "timeout=3")))
    file = tmp_path / "history.db"
    with working("run", "shop", "--broker", "memory://x", "--history", str(file), "--drain", "1", cwd=tmp_path) as worker:
        worker.stop()
    [ledger] = [line for line in worker.err if "ledger orders/billing" in line]
    [finished] = re.findall(r"finished=(\d+)", ledger)
    assert len(search(file, handler="orders/billing", outcome="finished", limit=5000)) == int(finished)


def test_a_look_for_all_of_many_takes_no_square_of_them(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    one = Store(file, age=1e12, size=1 << 30)
    for n in range(400):
        one.write([(b"%d" % (n * 100 + m), "o/b", "a:4150", 1, "finished", ("", ""), n + m / 100, n + 1.0) for m in range(100)])
    one.close()

    def cpu(limit: int) -> float:
        began = time.process_time()
        assert len(search(file, limit=limit)) == limit
        return time.process_time() - began

    few = min(cpu(5000) for _ in range(3))
    assert min(cpu(40_000) for _ in range(3)) < few * 8 * 2.5
