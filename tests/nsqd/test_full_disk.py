"""A start on a disk that has no byte left: one sentence, exit code 1, and the folder is as it was."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from framework.nsqd.store import FolderUnusable, Store, index
from framework.testing.servers import Server, own_nsqd
from tests.nsqd.conftest import logged
from tests.nsqd.layers import wait_for
from tests.nsqd.storing import TOPIC, declared, everything, publish
from tests.nsqd.test_durability import mpub

FILLER = "filler"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of its own, of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", place], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("only root can mount a small filesystem")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path) -> None:
    """Leave no byte."""
    with (disk / FILLER).open("ab", buffering=0) as filler:
        for size in (1 << 20, 4096, 1):
            try:
                while filler.write(bytes(size)):
                    pass
            except OSError:
                continue


def content(folder: Path) -> dict[str, object]:
    """What is in the folder: bytes of files, and the rows of the index, which SQLite may lay out otherwise."""
    found: dict[str, object] = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("index.db")
    }
    with tempfile.TemporaryDirectory() as elsewhere:
        for path in folder.glob("index.db*"):
            shutil.copy(path, elsewhere)
        with closing(sqlite3.connect(Path(elsewhere) / "index.db")) as db:
            found["index"] = list(db.iterdump())
    return found


def refused(server: Server) -> str:
    """What it says when it does not start; its exit code is 1."""
    ended = subprocess.run(server.command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1, ended.stderr
    return ended.stderr


@pytest.mark.parametrize("killed", [True, False], ids=["after a kill", "after a stop"])
def test_a_start_on_a_full_disk_is_refused_and_changes_nothing(small_disk: Path, talk: Callable[..., Any], killed: bool) -> None:
    server = own_nsqd(small_disk / "data")
    server.start()
    client = talk(server)
    client.send(b"SUB full c\nRDY 2500\n" + mpub(b"full", [b"%d" % at for at in range(1000)]))
    ids = [message_id for message_id, _, _ in client.get(1000)]
    client.send(b"".join(b"FIN " + one + b"\n" for one in ids[:990]))
    wait_for(lambda: server.channel_stats("full", "c")["in_flight_count"] == 10)
    time.sleep(0.5)  # it is saved every 50 ms
    server.kill() if killed else server.stop()
    fill(small_disk)
    before = content(server.data)
    words = refused(server)
    assert words.count("\n") == 1, words
    assert str(server.data) in words
    assert "room" in words
    assert content(server.data) == before
    assert not (server.data / "bad").exists()
    (small_disk / FILLER).unlink()
    server.start()
    try:
        assert server.channel_stats("full", "c")["depth"] == 10
        assert not [line for line in server.log if "rebuilt" in line]
    finally:
        server.kill()


def test_damage_that_cannot_be_kept_on_a_full_disk_is_left_for_the_next_start(small_disk: Path) -> None:
    folder = small_disk / "data"
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"whole")
    publish(opened, b"x" * 9000)
    opened.close()
    log = folder / "log" / "0000000001.log"
    os.truncate(log, log.stat().st_size - 3)
    (folder / "index.db").unlink()
    fill(small_disk)
    before = content(folder)
    with pytest.raises(FolderUnusable, match="room"):
        Store(folder)
    after = content(folder)
    assert {**after, "index": []} == {**before, "index": []}
    (small_disk / FILLER).unlink()
    again = Store(folder)
    assert everything(again) == [b"whole"]
    assert len(again.reports) == 1
    again.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (sqlite3.SQLITE_FULL, "database or disk is full"),
        (sqlite3.SQLITE_IOERR, "disk I/O error"),
        (sqlite3.SQLITE_CANTOPEN, "unable to open database file"),
        (sqlite3.SQLITE_READONLY, "attempt to write a readonly database"),
        (sqlite3.SQLITE_BUSY, "database is locked"),
    ],
)
def test_only_damage_is_taken_for_damage(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"a")
    opened.close()
    before = content(folder)

    def fails(*_: object) -> None:
        error = sqlite3.OperationalError(words)
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(index.Index, "_check", fails)
    with pytest.raises(FolderUnusable, match=f"{folder}.*{words}"):
        Store(folder)
    monkeypatch.undo()
    assert content(folder) == before
    again = Store(folder)  # the refused one has let the folder go
    assert everything(again) == [b"a"]
    assert not again.catalog.rebuilt
    again.close()


@pytest.mark.parametrize("name", ["log", "index.db", "bad", "lock", "meta.json"])
def test_what_stands_in_the_way_is_named(folder: Path, name: str) -> None:
    server = own_nsqd(folder)
    if name in ("log", "bad"):
        folder.mkdir()
        if name == "bad":
            Store(folder).close()
            os.truncate(folder / "index.db", 100)
        (folder / name).write_bytes(b"a file where a folder should be")
    else:
        (folder / name).mkdir(parents=True)
    words = refused(server)
    assert words.count("\n") == 1, words
    assert str(folder / name) in words
    assert "Errno" not in words, "it says it once, in words"


def test_a_data_path_that_is_a_file_is_named(folder: Path) -> None:
    folder.write_bytes(b"")
    words = refused(own_nsqd(folder))
    assert words.count("\n") == 1, words
    assert str(folder) in words
    assert "--data-path" in words


def test_an_index_without_room_is_named_while_it_serves(small_disk: Path) -> None:
    server = own_nsqd(small_disk / "data")
    server.start()
    try:
        fill(small_disk)
        with pytest.raises(Exception, match="503"):
            server.http("/pub?topic=full", b"x")
        assert logged(server, f"nothing was published - {server.data}: ")
    finally:
        server.kill()


def ping(server: Server) -> int:
    try:
        server.http("/ping")
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def test_ping_says_by_itself_that_there_is_room_again(small_disk: Path) -> None:
    """A balancer that goes by it sends no message that could show it."""
    server = own_nsqd(small_disk / "data")
    server.start()
    try:
        server.http("/pub?topic=full", b"x")
        fill(small_disk)
        with pytest.raises(Exception, match="503"):
            server.http("/pub?topic=full", b"x")
        assert ping(server) == 500
        (small_disk / FILLER).unlink()
        wait_for(lambda: ping(server) == 200)
    finally:
        server.kill()


def test_no_segment_begins_where_its_head_alone_has_room(small_disk: Path) -> None:
    """Each look of an nsqd at its disk would begin one, and say for a moment that all is well."""
    opened = Store(small_disk / "data")
    disk = os.statvfs(small_disk)
    with (small_disk / FILLER).open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, disk.f_bavail * disk.f_frsize - (4 << 20))
    with pytest.raises(OSError, match="No space left"):
        opened.try_to_write(5 << 20)
    assert opened.log.numbers == [1]
    assert not (small_disk / "data" / "probe").exists()
    opened.try_to_write(1 << 20)
    assert opened.log.numbers == [1, 2]
    opened.close()


def finished_on_a_full_disk(server: Server, disk: Path, talk: Callable[..., Any]) -> None:
    """Of 1,000 messages 900 are finished, and 50 wait for another try."""
    client = talk(server)
    client.send(b"SUB full c\nRDY 2500\n" + mpub(b"full", [b"%d" % at for at in range(1000)]))
    ids = [message_id for message_id, _, _ in client.get(1000)]
    wait_for(lambda: (server.data / "reserve").stat().st_size > 0)
    fill(disk)
    client.send(b"".join(b"FIN " + one + b"\n" for one in ids[:900]))
    client.send(b"".join(b"REQ " + one + b" 600000\n" for one in ids[900:950]))
    wait_for(lambda: server.channel_stats("full", "c")["in_flight_count"] == 50)
    assert logged(server, "states not saved")


def test_a_stop_on_a_full_disk_saves_what_was_finished(small_disk: Path, talk: Callable[..., Any]) -> None:
    server = own_nsqd(small_disk / "data")
    server.start()
    finished_on_a_full_disk(server, small_disk, talk)
    assert server.stop() == 0
    (small_disk / FILLER).unlink()
    server.start()
    try:
        found = server.channel_stats("full", "c")
        assert (found["depth"], found["deferred_count"]) == (50, 50)
    finally:
        server.kill()


def test_a_stop_that_can_save_nothing_says_so(small_disk: Path, talk: Callable[..., Any]) -> None:
    server = own_nsqd(small_disk / "data")
    server.start()
    finished_on_a_full_disk(server, small_disk, talk)
    (small_disk / "data" / "reserve").unlink()
    fill(small_disk)
    assert server.stop() == 1
    assert logged(server, "which comes again: ")
    assert not any("Traceback" in line for line in server.log)
    (small_disk / FILLER).unlink()
    server.start()
    try:
        assert server.channel_stats("full", "c")["depth"] == 1000
    finally:
        server.kill()
