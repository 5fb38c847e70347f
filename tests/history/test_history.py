"""What a worker writes of how messages ended, what is found of it, and that no fault of the file is the workers' matter."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from framework.errors import WrongUse
from framework.history import search
from framework.history.rows import Entry
from framework.history.store import Store
from framework.history.writer import Writer
from framework.publisher import Publisher
from framework.testing.servers import Server
from framework.testing.workers import call, working
from tests.disks import tmpfs

KINDS = ("greenlet", "thread", "process")
SHOP = """
    import time
    from framework import Batch, Message, Reject, Retry, Skip, handler

    def work(message):
        time.sleep(0.02)
        if message.body == b"bad": raise ValueError("cannot do nsq://user:hunter2@host:4150\\nmore")
        if message.body == b"again" and message.attempts == 1: raise Retry(delay=0)
        if message.body == b"reject": raise Reject("no such order")

    @handler("orders", "greenlet", max_attempts=9)
    def in_greenlet(message: Message): work(message)

    @handler("orders", "thread", max_attempts=9, slots="thread")
    def in_thread(message: Message): work(message)

    @handler("orders", "process", max_attempts=9, slots="process", concurrency=1)
    def in_process(message: Message): work(message)

    @handler("orders", "batch", batch=4, linger=1)
    def in_batch(batch: Batch):
        for message in batch:
            if message.body == b"reject": batch.fail(message, Reject("of a batch"))
"""


def row(number: int, *, id: str = "", started: float = 0.0) -> Entry:
    began = started or time.time() + number
    return (id or f"{number:016x}").encode(), "orders/billing", "a:4150", 1, "finished", ("", ""), began, began + 0.5


def send(nsqd: Server, *bodies: str) -> None:
    for path in ("topic/create?topic=orders", *(f"channel/create?topic=orders&channel={one}" for one in (*KINDS, "batch"))):
        nsqd.http(f"/{path}", b"")
    publisher = Publisher(f"nsq://{nsqd.address}")
    for body in bodies:
        publisher.publish("orders", body)
    publisher.close()


@pytest.mark.real
def test_each_end_is_found_by_what_it_was(nsqd: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP))
    send(nsqd, "ok", "bad", "again", "reject")
    file = tmp_path / "history.db"
    arguments = ("run", "shop", "--broker", f"nsq://{nsqd.address}", "--history", str(file), "--ledger", "ledger.json")
    with working(*arguments, cwd=tmp_path) as worker:
        worker.wait_until(lambda: file.exists() and len(search(file, outcome="dead")) == 4 and len(search(file, id="")) >= 18)
        assert worker.stop() == 0
    found = search(file, limit=1000)
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    for handler, counts in ledger.items():
        mine = Counter(one["outcome"] for one in found if one["handler"] == handler)
        assert mine["finished"] == counts["finished"]
        assert mine["dead"] == counts["dead"] == 1
        assert mine["requeued"] <= counts["requeued"], "what was given back before a call is of no call"
    assert [one["started"] for one in found] == sorted((one["started"] for one in found), reverse=True)
    for kind in KINDS:
        [dead] = search(file, handler=f"orders/{kind}", outcome="dead")
        assert (dead["exception"], dead["words"], dead["node"]) == ("framework.errors.Reject", "no such order", nsqd.address)
        assert (dead["attempt"], len(dead["id"])) == (1, 16)
        assert 0.02 <= dead["seconds"] < 20
        failed = search(file, handler=f"orders/{kind}", exception="valueerror")
        assert {one["words"] for one in failed} == {"cannot do nsq://host:4150"}
        assert {one["outcome"] for one in failed} <= {"requeued", "lease_lost"}
        [again] = search(file, handler=f"orders/{kind}", exception="errors.retry")
        assert sorted(one["attempt"] for one in search(file, id=again["id"], handler=f"orders/{kind}")) == [1, 2]
    [dead] = search(file, handler="orders/batch", exception="of a batch")
    assert dead["outcome"] == "dead"
    shown = call("history", "--history", str(file), "--outcome", "dead", "--handler", "*/thread", cwd=tmp_path)
    assert shown.returncode == 0
    head, line = shown.stdout.splitlines()
    assert head.split()[:3] == ["STARTED", "TOOK", "OUTCOME"]
    assert "framework.errors.Reject: no such order" in line
    as_json = call("history", "--history", str(file), "--since", "1h", "--limit", "3", "--json", cwd=tmp_path)
    assert [json.loads(one) for one in as_json.stdout.splitlines()] == found[:3]
    assert len(call("history", "--history", str(file), "--before", "1h", cwd=tmp_path).stdout.splitlines()) == 1


def test_several_processes_write_to_one_file_while_it_is_read(tmp_path: Path) -> None:
    code = """
        import os, sys
        from pathlib import Path
        from framework.history.writer import Writer
        writer = Writer(Path(sys.argv[1]), age=3600, size=1 << 30)
        writer.begin()
        import time
        for n in range(20):
            for m in range(500):
                writer.put((b"%d.%d" % (os.getpid(), n * 500 + m), "orders/billing", "a:4150", 1, "finished", ("", ""), time.time(), time.time()))
            time.sleep(0.05)
        assert writer.flush(30)
    """  # noqa: E501
    file = tmp_path / "history.db"
    writers = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(file)], stderr=subprocess.PIPE) for _ in range(3)
    ]
    while any(one.poll() is None for one in writers):
        if file.exists() and file.stat().st_size:
            search(file, limit=10)
        time.sleep(0.05)
    assert [one.stderr.read() for one in writers if one.stderr] == [b""] * 3
    found = search(file, limit=100_000)
    assert len({one["id"] for one in found}) == len(found) == 30_000


def test_it_is_bounded_by_age_and_by_size(tmp_path: Path) -> None:
    file, now = tmp_path / "history.db", time.time()
    store = Store(file, age=3600, size=200_000)
    store.write([row(n, started=now - 7200) for n in range(100)])
    store.write([row(1, started=now)])
    assert len(search(file)) == 1
    for part in range(30):
        store.write([row(part, id=os.urandom(8).hex(), started=now + part + n / 1000) for n in range(1000)])
    store.close()
    assert file.stat().st_size < 300_000
    found = search(file, limit=100_000)
    assert 3000 < len(found) < 30_000
    assert found[0]["started"] == pytest.approx(now + 29.999)
    assert found[0]["started"] - found[-1]["started"] < 20, "the oldest went first"


@pytest.mark.parametrize(("over", "goes"), [(-0.5, 0), (0.0, 0), (0.5, 1), (1.0, 1), (1.5, 1)])
def test_a_byte_over_its_size_costs_the_oldest_and_none_over_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: float, goes: int
) -> None:
    """And it is through with it: what is still over is looked at again and again."""
    monkeypatch.setattr("framework.history.store.LOOSE", 0.5)
    store = Store(tmp_path / "history.db", age=3600, size=1 << 30)
    for part in range(3):
        store.write([row(n, id=f"{part}-{n}") for n in range(100)])
    db = store._db
    assert db is not None
    [(pages,)], [(page,)] = db.execute("PRAGMA page_count").fetchall(), db.execute("PRAGMA page_size").fetchall()
    store._size = 2 * (pages * page - over)  # type: ignore[assignment]
    db.set_progress_handler(lambda: 1, 100_000)  # whoever does not come to an end is interrupted
    store.write([])
    db.set_progress_handler(None, 0)
    [(left,)] = db.execute("SELECT count(*) FROM blocks").fetchall()
    assert left == 3 - goes
    store.close()


def test_what_a_clock_that_was_ahead_has_dated_goes_by_its_place_where_the_size_is_reached(tmp_path: Path) -> None:
    file, now = tmp_path / "history.db", time.time()
    store = Store(file, age=3600, size=200_000)
    store.write([row(0, id="ahead", started=now + 365 * 86400)])
    for part in range(30):
        store.write([row(part, id=os.urandom(8).hex(), started=now + n / 1000) for n in range(1000)])
    store.close()
    assert not search(file, id="ahead")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def put(writer: Writer, number: int) -> None:
    now = time.time()
    writer.put((b"%d" % number, "orders/billing", "a:4150", 1, "finished", ("", ""), now, now))
    assert writer.flush(20)


@pytest.mark.parametrize("fault", ["header", "middle"])
def test_a_corrupt_file_is_set_aside_and_begun_anew(fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "history.db"
    store = Store(file, age=3600, size=1 << 30)
    store.write([row(n, id=os.urandom(8).hex()) for n in range(20_000)])
    store.close()
    data = bytearray(file.read_bytes())
    begin, end = (0, 4000) if fault == "header" else (100, 60_000)
    data[begin:end] = os.urandom(end - begin)
    file.write_bytes(data)
    writers = [Writer(file, age=3600, size=1 << 30) for _ in range(2)]
    for number, writer in enumerate(writers):
        writer.begin()
        put(writer, number)
        put(writer, number + 10)
    assert {one["id"] for one in search(file)} == {"0", "1", "10", "11"}
    [aside] = [one for one in tmp_path.iterdir() if ".corrupt-" in one.name and not one.name.endswith(("-wal", "-shm"))]
    assert aside.read_bytes() == bytes(data), "what could still be read of it is kept"
    assert [record.getMessage().count("set aside") for record in caplog.records if record.levelname == "WARNING"] == [1]


def test_a_file_that_is_removed_is_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    writer = Writer(file, age=3600, size=1 << 30)
    writer.begin()
    put(writer, 1)
    for one in tmp_path.iterdir():
        one.unlink()
    put(writer, 2)
    assert [one["id"] for one in search(file)] == ["2"]


def test_a_file_that_is_truncated_is_set_aside_and_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "history.db"
    writers = [Writer(file, age=3600, size=1 << 30) for _ in range(2)]
    for number, writer in enumerate(writers):
        writer.begin()
        put(writer, number)
    os.truncate(file, 0)
    for number, writer in enumerate(writers):
        put(writer, number + 10)
        put(writer, number + 20)
    assert {one["id"] for one in search(file)} == {"10", "20", "11", "21"}
    assert ["is corrupt (it was truncated)" in record.getMessage() for record in caplog.records] == [True]


def test_a_name_that_cannot_be_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="cannot be read: "):
        search(tmp_path / ("x" * 300))


@pytest.mark.parametrize("fault", ["full", "away"])
def test_a_disk_that_takes_nothing_is_said_once_and_once_that_it_does_again(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    disk = tmp_path / "disk"
    disk.mkdir()
    with tmpfs(disk, 1 << 20):
        folder = disk / "folder"
        folder.mkdir()
        filler, away = disk / "filler", disk / "away"
        if fault == "full":
            with pytest.raises(OSError, match="No space"):
                filler.write_bytes(bytes(2 << 20))
        else:
            folder.rename(away)
        writer = Writer(folder / "history.db", age=3600, size=1 << 30)
        writer.begin()
        for number in range(3):
            put(writer, number)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "cannot be written" in caplog.text
        filler.unlink() if fault == "full" else away.rename(folder)
        put(writer, 7)
        assert "7" in [one["id"] for one in search(folder / "history.db")]
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
        assert "3 messages that ended meanwhile are not in it" in caplog.text
        writer._store.close()


def test_what_is_being_written_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, go, write = threading.Event(), threading.Event(), Store.write

    def slowly(*arguments: Any) -> None:
        written.set()
        assert go.wait(60)
        write(*arguments)

    monkeypatch.setattr(Store, "write", slowly)
    writer = Writer(tmp_path / "history.db", age=3600, size=1 << 30)
    writer.begin()
    writer.put((b"1", "orders/billing", "a:4150", 1, "finished", ("", ""), time.time(), time.time()))
    assert written.wait(60)
    assert not writer.flush(0.05)
    go.set()
    assert writer.flush(60)
    assert [one["id"] for one in search(tmp_path / "history.db")] == ["1"]


def test_a_disk_that_fails_is_let_go_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So that it can be unmounted, and checked."""
    caplog.set_level("INFO")

    def fail(*_: Any) -> float:
        raise sqlite3.OperationalError("disk I/O error")

    file = tmp_path / "history.db"
    writer = Writer(file, age=3600, size=1 << 30)
    writer.begin()
    put(writer, 1)
    assert caplog.messages == []
    assert [one for one in psutil.Process().open_files() if one.path.startswith(str(file))]
    with monkeypatch.context() as failing:
        failing.setattr(Store, "_prune", fail)
        put(writer, 2)
        put(writer, 2)
    assert not [one for one in psutil.Process().open_files() if one.path.startswith(str(file))]
    put(writer, 3)
    put(writer, 4)
    assert {one["id"] for one in search(file)} == {"1", "3", "4"}
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "2 messages that ended meanwhile are not in it" in caplog.messages[1]


def test_a_worker_goes_on_without_its_history(tmp_path: Path) -> None:
    shop = """
        from framework import Middleware, handler, publish_many

        class Feed(Middleware):
            def start(self): publish_many("orders", map(str, range(100)))

        @handler("orders", "billing", middleware=[Feed()])
        def bill(text: str): print("done", flush=True)
    """
    (tmp_path / "shop.py").write_text(textwrap.dedent(shop))
    with working("run", "shop", "--broker", "memory://x", "--history", "/proc/history.db", cwd=tmp_path) as worker:
        worker.wait_until(lambda: worker.out.count("done") == 100)
        worker.wait_for("the history /proc/history.db cannot be written")
        assert worker.stop() == 0
    assert sum("history" in line for line in worker.err) == 1


def test_without_it_nothing_of_it_is_imported(tmp_path: Path) -> None:
    shop = """
        import sys
        from framework import Middleware, handler

        class Look(Middleware):
            def start(self):
                print("imported:", [one for one in sys.modules if one.startswith(("sqlite3", "framework.history"))], flush=True)

        @handler("orders", "billing", middleware=[Look()])
        def bill(text: str): ...
    """
    (tmp_path / "shop.py").write_text(textwrap.dedent(shop))
    with working("run", "shop", "--broker", "memory://off", cwd=tmp_path, ready="imported: []") as worker:
        assert worker.stop() == 0


def test_what_is_not_its_own_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "of-another.db"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE orders (id)")
    db.close()
    before = file.read_bytes()
    writer = Writer(file, age=3600, size=1 << 30)
    writer.begin()
    put(writer, 1)
    assert file.read_bytes() == before
    assert "is the database of another program" in caplog.text
    with pytest.raises(WrongUse, match="is the database of another program"):
        search(file)
    with pytest.raises(WrongUse, match="there is no history at"):
        search(tmp_path / "none.db")
    (tmp_path / "new.db").touch()
    assert search(tmp_path / "new.db") == [], "a worker has just begun it"
    with pytest.raises(WrongUse, match="it is one of finished"):
        search(file, outcome="done")
