"""What is published is for its publishers and consumers: no other user of the machine can read it from the disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from framework.nsqd import embedded
from framework.nsqd.store import Store, files, log, reserve
from framework.nsqd.store import folder as folders
from framework.testing.servers import own_nsqd, running
from tests.nsqd.layers import wait_for
from tests.nsqd.storing import declared, flip, publish, segment


@pytest.fixture(autouse=True)
def open_handed() -> Iterator[None]:
    """A umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def wide(folder: Path) -> dict[str, str]:
    """What others could read, change or list."""
    modes = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # what is there for a moment only may be gone
            modes[str(path.relative_to(folder))] = stat.S_IMODE(path.stat().st_mode)
    return {name: oct(mode) for name, mode in modes.items() if mode & 0o077}


def used(folder: Path) -> dict[str, str]:
    """``wide`` of a folder while an nsqd runs on it, with a damaged index, and after."""
    server = own_nsqd(folder)
    with running(server):
        server.http("/pub?topic=t", b"secret")
        found = wide(folder)
    return found | wide(folder)


def test_a_new_folder_is_private(folder: Path) -> None:
    assert used(folder) == {}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.glob("index.db-*"):
        path.unlink()
    (folder / "index.db").write_bytes(b"damaged" * 500)
    assert used(folder) == {}
    assert list((folder / "bad").iterdir())


def test_nothing_is_readable_for_others_even_for_a_moment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made private, not made so afterwards: whoever has opened a file can go on reading it."""
    for module in (files, folders, log, reserve):
        monkeypatch.setattr(module, "keep_private", lambda path: None)
    for damaged in (False, True):
        opened = Store(folder)
        opened.append([declared()])
        publish(opened, b"secret")
        opened._roll()
        opened.flush()
        assert wide(folder) == {}
        opened.close()
        if not damaged:
            (folder / "index.db").write_bytes(b"damaged" * 500)
            flip(segment(folder), 150)
    assert len(list((folder / "bad").iterdir())) >= 2
    assert wide(folder) == {}


def test_a_folder_that_others_could_read_becomes_private_but_for_itself(folder: Path) -> None:
    """The data path may be a folder that has other things in it: whoever made it decides who may list it."""
    used(folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert set(wide(folder)) >= {"log", "index.db", "meta.json", str(segment(folder).relative_to(folder))}
    with running(own_nsqd(folder)):
        wait_for(lambda: not wide(folder))  # it listens before it says so in the folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_reserve_that_others_could_read_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "reserve").write_bytes(b"")
    reserve.Reserve(tmp_path / "reserve")
    assert wide(tmp_path) == {}


def test_a_folder_that_a_worker_makes_is_private(folder: Path) -> None:
    nsqd = embedded.ensure(folder, tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    try:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert wide(folder) == {}
    finally:
        nsqd.stop()
