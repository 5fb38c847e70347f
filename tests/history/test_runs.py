"""What is kept of messages that are finished many at a time: each of them once, with the times of its run."""

from __future__ import annotations

import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from framework.history import search, writer
from framework.history.rows import Entry
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
