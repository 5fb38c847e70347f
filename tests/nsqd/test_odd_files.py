"""A FIFO in place of a file of the data folder: nobody waits for it, and the sentence names it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import gevent
import pytest

from framework.nsqd.backup import Backup
from framework.nsqd.options import parse
from framework.nsqd.store import FolderUnusable, Store
from framework.nsqd.store.survey import Survey
from tests.nsqd.storing import declared


def back_up(folder: Path) -> None:
    Backup(parse([f"--data-path={folder}", f"--backup={folder}-copy"])).run()


@pytest.mark.parametrize(
    "name", ["meta.json", "lock", "clock", "reserve", "index.db", "index.db-wal", "log/0000000001.log", ".sync"]
)
@pytest.mark.parametrize("open_it", [Store, Survey, back_up], ids=["a start", "a look", "a backup"])
def test_a_fifo_is_refused_and_left(folder: Path, name: str, open_it: Callable[[Path], object]) -> None:
    opened = Store(folder)
    opened.append([declared()])
    opened.close()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    before = sorted(folder.rglob("*"))
    with pytest.raises(FolderUnusable, match=f"{re.escape(str(folder / name))} is no file; move it away"):
        gevent.get_hub().threadpool.spawn(open_it, folder).get(timeout=20)
    assert sorted(folder.rglob("*")) == before


def test_so_is_one_in_a_folder_that_is_new(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "clock")
    with pytest.raises(FolderUnusable, match="clock is no file"):
        gevent.get_hub().threadpool.spawn(Store, folder).get(timeout=20)
