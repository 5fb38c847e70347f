"""``--backup`` of an nsqd that is served: what was confirmed before the copy began is in it, whatever happens meanwhile."""

from __future__ import annotations

import itertools
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd import backup as backups
from framework.nsqd.backup import Backup, NotBackedUp, Pinned, _refused
from framework.nsqd.options import parse
from framework.nsqd.store import FolderUnusable, Retry, Store, TopicSave
from framework.nsqd.store.segments import Segments
from framework.nsqd.verify import Verify
from framework.testing.servers import Server, ServerMissing, own_nsqd
from tests.conftest import missing
from tests.disks import tmpfs
from tests.nsqd.conftest import Talk
from tests.nsqd.storing import TOPIC, declared, everything, flip, killed, payload, publish, saved, segment
from tests.nsqd.taking import run

SMALL = (
    "import sys; from framework.nsqd.store import compaction, store; store.SEGMENT_BYTES = 100_000; store._ROLL_BYTES = 20_000; "
    "store._SWEEP_SECONDS = 0.1; compaction._SHARE = 0; from framework.nsqd.server import main; sys.exit(main(sys.argv[1:]))"
)
"""An nsqd whose segments come and go many times a second."""


def backup(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "framework.nsqd", f"--data-path={source}", f"--backup={target}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


class Load:
    """Publishes and consumes without end. Every third message is finished, the others are to be tried again in an hour."""

    def __init__(self, server: Server) -> None:
        self.confirmed: list[bytes] = []
        self.finished: set[bytes] = set()
        """Perhaps: said to the server."""
        self._server = server
        self._end = threading.Event()
        server.http("/topic/create?topic=t", b"")
        server.http("/channel/create?topic=t&channel=c", b"")
        self._threads = [threading.Thread(target=one) for one in (self._publish, self._consume)]
        for one in self._threads:
            one.start()

    def _publish(self) -> None:
        for group in itertools.count():
            bodies = [b"%06d-%03d" % (group, at) + b"x" * 500 for at in range(20)]
            if self._end.is_set():
                return
            try:
                self._server.http("/mpub?topic=t&binary=true", (20).to_bytes(4, "big") + payload(*bodies))
            except OSError:
                return
            self.confirmed += bodies

    def _consume(self) -> None:
        talk = Talk(("127.0.0.1", self._server.tcp_port))
        talk.send(b"SUB t c\nRDY 200\n")
        while not self._end.is_set() and not talk.closed:
            talk.read(0.05)
            for message_id, _, body in talk.messages:
                if int(body[7:10]) % 3:
                    talk.send(b"REQ %b 3600000\n" % message_id)
                else:
                    self.finished.add(body)
                    talk.send(b"FIN %b\n" % message_id)
            talk.forget()
        talk.close()

    def stop(self) -> None:
        self._end.set()
        for one in self._threads:
            one.join()


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[tuple[Server, Load]]:
    server = own_nsqd(tmp_path / "data")
    at = server.command.index("-m")
    server.command[at : at + 2] = ["-c", SMALL]
    server.start()
    load = Load(server)
    yield server, load
    load.stop()
    server.kill()


def holds(folder: Path, before: list[bytes], finished: set[bytes], capsys: pytest.CaptureFixture[str]) -> int:
    """The copy is sound, and an nsqd that starts from it has all that was confirmed and is not finished. How many these are."""
    Verify(parse([f"--data-path={folder}"])).run()
    assert "note" not in capsys.readouterr().out
    found = run(folder)
    wanted = set(before) - finished
    assert wanted <= found.bodies
    assert found.lost == 0
    return len(wanted)


@pytest.mark.slow
def test_all_that_was_confirmed_before_is_in_a_copy_that_is_made_under_load(
    loaded: tuple[Server, Load], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, load = loaded
    segments = set[str]()
    for at in range(4):
        before = list(load.confirmed)
        done = backup(server.data, tmp_path / f"copy{at}")
        assert (done.returncode, done.stderr) == (0, "")
        segments |= {path.name for path in (tmp_path / f"copy{at}" / "log").iterdir()}
        assert holds(tmp_path / f"copy{at}", before, set(load.finished), capsys) > 20 or at == 0
    assert len(segments) > 5


@pytest.mark.slow
def test_a_copy_is_whole_or_none_when_the_nsqd_is_killed_meanwhile(
    loaded: tuple[Server, Load], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, load = loaded
    while len(load.confirmed) < 2000:
        load._end.wait(0.05)
    before = list(load.confirmed)
    with ThreadPoolExecutor() as pool:
        copying = pool.submit(backup, server.data, tmp_path / "copy")
        while not (tmp_path / "copy").exists():
            load._end.wait(0.001)
        server.kill()
        done = copying.result()
    load.stop()
    if done.returncode:
        assert done.stderr.startswith("nsqd: no backup was made: ")
        assert not (tmp_path / "copy").exists()
    else:
        assert holds(tmp_path / "copy", before, load.finished, capsys) > 20
    again = backup(server.data, tmp_path / "again")
    assert (again.returncode, again.stderr) == (0, "")
    assert holds(tmp_path / "again", before, load.finished, capsys) > 20


def copied(source: Path, target: Path) -> Path:
    Backup(parse([f"--data-path={source}", f"--backup={target}"])).run()
    return target


def test_a_folder_that_nobody_serves_is_copied_with_its_state(folder: Path, tmp_path: Path) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    (batch,) = publish(opened, b"finished", b"requeued", b"new")
    opened.save([TopicSave(TOPIC, batch.end)], [saved(batch.first + 2, put={batch.first + 1: Retry(0, 3)})])
    killed(opened, folder, tmp_path / "killed")
    (folder / "bad").mkdir()
    (folder / "bad" / "kept").write_bytes(b"damaged")
    opened.close()
    for name, source in (("of the ended", folder), ("of the killed", tmp_path / "killed")):
        copy = copied(source, tmp_path / name)
        assert run(copy).served == {"t7/c": [b"new", b"requeued"]}
    assert (tmp_path / "of the ended" / "bad" / "kept").read_bytes() == b"damaged"


def test_a_record_that_is_being_written_is_left_out_and_damage_is_not(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"damaged")
    at = opened.log.size - 3
    publish(opened, b"whole")
    opened.flush()
    publish(opened, b"not in the index")
    end = opened.log.size
    with segment(folder).open("ab") as file:
        file.write(segment(folder).read_bytes()[:60])
    flip(segment(folder), at)
    copy = copied(folder, tmp_path / "copy")
    assert segment(copy).read_bytes() == segment(folder).read_bytes()[:end]
    again = Store(copy)
    assert everything(again) == [b"whole", b"not in the index"]
    again.close()


def test_a_segment_that_was_removed_meanwhile_is_in_the_copy(opened: Store, folder: Path, tmp_path: Path) -> None:
    """Whether it is still needed is told by the index, which is copied after the segments were opened."""
    publish(opened, b"old")
    opened._roll()
    publish(opened, b"new")
    real = Segments.length

    def length(self: Segments, number: int) -> int:
        found = real(self, number)
        if number == 1:
            segment(folder, 1).unlink(missing_ok=True)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segments, "length", length)
        copy = copied(folder, tmp_path / "copy")
    again = Store(copy)
    assert everything(again) == [b"old", b"new"]
    again.close()


def test_a_segment_that_is_removed_while_the_index_is_copied_is_in_the_copy(
    opened: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened before that: whether it is still needed is not known until the index is there."""
    publish(opened, b"old")
    opened.flush()
    opened._roll()
    real = Backup._copy_index

    def copy_index(self: Backup, alone: bool) -> tuple[set[int], tuple[int, int]]:
        segment(folder, 1).unlink()
        return real(self, alone)

    monkeypatch.setattr(Backup, "_copy_index", copy_index)
    again = Store(copied(folder, tmp_path / "copy"))
    assert everything(again) == [b"old"]
    again.close()


def test_segments_that_are_found_later_are_in_their_order(tmp_path: Path) -> None:
    """The last is the one that is written to; a file that gets its own name again may come before those that were there."""
    pinned = Pinned(tmp_path, 1)
    for numbers in ((2, 4), (1, 3, 5)):
        for number in numbers:
            (tmp_path / f"{number:010}.log").touch()
        pinned.pin()
    assert pinned.numbers == [1, 2, 3, 4, 5]
    pinned.close()


def test_segments_that_go_faster_than_they_are_opened_are_told(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"old")
    opened.flush()
    opened._roll()
    segment(folder, 1).unlink()
    with pytest.raises(NotBackedUp, match="came and went too fast; try again when less is published"):
        copied(folder, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["copy.log", f"{'9' * 22}.log"])
def test_a_segment_under_no_segments_name_is_not_left_out_of_a_copy(folder: Path, tmp_path: Path, name: str) -> None:
    opened = Store(folder)
    publish(opened, b"old")
    opened.close()
    segment(folder).rename(folder / "log" / name)
    with pytest.raises(NotBackedUp, match=rf"no backup was made: {name} has no segment's name; start an nsqd on the folder, "):
        copied(folder, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def taken(folder: Path) -> Path:
    folder.mkdir()
    (folder / "file").write_text("")
    return folder


def a_file(path: Path) -> Path:
    path.write_text("")
    return path


def a_link(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path


REFUSED: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "what is in use": (lambda folder, tmp: taken(tmp / "taken"), "is not an empty folder; name one that is not there yet"),
    "a file": (lambda folder, tmp: a_file(tmp / "file"), "is not an empty folder"),
    "itself": (lambda folder, tmp: folder, "is not an empty folder"),
    "a folder in it": (lambda folder, tmp: folder / "copy", "is in the data folder itself; name one outside of it"),
    "a name that is too long": (lambda folder, tmp: tmp / ("x" * 300), "File name too long"),
    "a link to itself": (lambda folder, tmp: a_link(tmp / "loop", tmp / "loop"), "File exists"),
    "a link to nothing": (lambda folder, tmp: a_link(tmp / "link", tmp / "gone"), "File exists"),
    "below a file": (lambda folder, tmp: a_file(tmp / "file") / "copy", "Not a directory"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_target_that_cannot_be_is_refused_in_a_sentence(kind: str, opened: Store, folder: Path, tmp_path: Path) -> None:
    make, words = REFUSED[kind]
    target = make(folder, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NotBackedUp, match=rf"^no backup was made: .*{words}"):
        copied(folder, target)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_source_that_is_none_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(FolderUnusable, match=r"is no data folder of an nsqd: there is no meta\.json in it"):
        copied(tmp_path / "none", tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_an_index_that_goes_meanwhile_is_in_no_copy(opened: Store, folder: Path, tmp_path: Path) -> None:
    """Its first copy names segments that may have gone with it."""
    publish(opened, b"a")
    opened.flush()
    copy = tmp_path / "copy"
    copy.mkdir()
    one = Backup(parse([f"--data-path={folder}", f"--backup={copy}"]))
    assert one._copy_index(alone=False) == ({1}, opened.index.position())
    assert (copy / "index.db").exists()
    moved = (folder / "index.db").rename(tmp_path / "index.db")
    assert one._copy_index(alone=False) == (set(), (0, 0))
    assert not (copy / "index.db").exists()
    moved.rename(folder / "index.db")


@pytest.mark.parametrize(("error", "words"), [
    (OSError(28, "No space left on device", "/there/log"), "/there/log: No space left on device"),
    (OSError(28, "No space left on device"), "No space left on device"), (OSError("odd"), "odd"),
    (sqlite3.OperationalError("disk I/O error"), "the index could not be copied: disk I/O error"),
])  # fmt: skip
def test_why_there_is_no_copy_is_said_in_the_systems_words(error: OSError | sqlite3.Error, words: str) -> None:
    assert str(_refused(error)) == f"no backup was made: {words}; what was copied is removed"


def test_without_room_there_is_no_half_copy(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"x" * (1 << 20))
    try:
        with tmpfs(tmp_path / "small", 256 << 10):
            with pytest.raises(NotBackedUp, match=r"^no backup was made: .*(No space left on device|disk is full)"):
                copied(folder, tmp_path / "small" / "copy")
            assert list((tmp_path / "small").iterdir()) == []
    except ServerMissing as error:
        missing(error)


def test_a_copy_that_was_cut_short_is_taken_for_none(opened: Store, folder: Path, tmp_path: Path) -> None:
    publish(opened, b"a")
    copy = copied(folder, tmp_path / "copy")
    (copy / "meta.json").unlink()  # it comes last
    with pytest.raises(FolderUnusable, match=r"meta\.json is missing beside a log"):
        Store(copy)


@pytest.mark.usefixtures("small_segments")
def test_messages_that_are_moved_between_any_two_steps_are_in_the_copy(
    opened: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Segments are made, moved and removed before and after each step: the order of the steps is what keeps the copy whole."""
    kept: list[int] = []

    def churn() -> None:
        (batch,) = publish(opened, b"unfinished %d" % len(kept), *[b"x" * 100] * 9)
        kept.append(batch.first)
        opened.save([TopicSave(TOPIC, batch.end)], [saved(batch.end, inflight=list(kept))])
        opened._roll()
        for _ in range(3):
            opened.sweep()

    for _ in range(5):
        churn()
    before = [b"unfinished %d" % at for at in range(len(kept))]
    for owner, name in ((Pinned, "pin"), (Backup, "_copy_index"), (Backup, "_copy_segment"), (Backup, "_copy_rest")):
        real = getattr(owner, name)

        def step(*arguments: object, real: Callable[..., object] = real) -> object:
            churn()
            done = real(*arguments)
            churn()
            return done

        monkeypatch.setattr(owner, name, step)
    copy = copied(folder, tmp_path / "copy")
    monkeypatch.undo()
    assert holds(copy, before, set(), capsys) == 5
    assert len(kept) > 12


def test_a_folder_on_a_disk_that_has_become_read_only_is_copied(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    try:
        with tmpfs(place, 8 << 20):
            opened = Store(place / "data")
            opened.append([declared(TOPIC, "c")])
            publish(opened, b"a", b"b")
            opened.close()
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
            done = backup(place / "data", tmp_path / "copy")
            assert (done.returncode, done.stderr) == (0, "")
    except ServerMissing as error:
        missing(error)
    assert run(tmp_path / "copy").served["t7/c"] == [b"a", b"b"]


def test_what_is_written_to_a_segment_behind_its_end_as_of_now_is_not_copied(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of what is written later may be missing."""
    monkeypatch.setattr(backups, "_PIECE_BYTES", 10)
    backing = Backup(parse([f"--data-path={folder}", f"--backup={tmp_path / 'copy'}"]))
    (tmp_path / "copy" / "log").mkdir(parents=True)
    content = bytes(range(25))
    source: Any = SimpleNamespace(length=lambda number: 13, read=lambda number, at, count: content[at : at + count])
    assert backing._copy_segment(source, 1) == 13
    assert segment(tmp_path / "copy").read_bytes() == content[:13]
