"""The storage's open files: few, however many segments its log has, and none is closed while it is read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from framework.nsqd.store import Store, segments
from framework.nsqd.store.segments import Found
from tests.nsqd.storing import TOPIC, declared, everything, publish


def test_a_backlog_of_many_segments_takes_few_open_files(folder: Path, small_segments: None) -> None:
    """Connections leave some to the storage, and a backlog grows for days."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    before = len(os.listdir("/dev/fd"))
    sent = [b"%04d" % at + b"x" * 1000 for at in range(60)]
    for body in sent:
        publish(opened, body)
    assert len(opened.log.numbers) > 25
    assert everything(opened) == everything(opened) == sent
    assert len(os.listdir("/dev/fd")) - before < 12
    opened.close()
    again = Store(folder)
    assert everything(again) == sent
    assert len(os.listdir("/dev/fd")) - before < 12
    again.close()


def test_the_one_that_is_written_to_stays_open_and_so_many_of_those_that_were_read_last(
    folder: Path, small_segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_MOST_OPEN", 3)
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    for at in range(20):
        publish(opened, b"%04d" % at + b"x" * 1000)
    log = opened.log
    log._file(log.active)
    for number in (1, 2, 3, 4, 5, 3):
        log._file(number)
    assert list(log._files) == [log.active, 4, 5, 3]
    opened.close()


def test_a_file_is_read_to_its_end_though_others_took_its_place_meanwhile(folder: Path, small_segments: None) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    for at in range(60):
        publish(opened, b"%04d" % at + b"x" * 1000)
    reading = opened.log.scan(1)
    found = [next(reading)]
    everything(opened)  # reads all others
    found += reading
    assert not [one for one in found if not isinstance(one, Found)]
    opened.close()


def test_a_backlog_is_read_where_the_disk_has_become_read_only(
    folder: Path, small_segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    sent = [b"%04d" % at + b"x" * 1000 for at in range(60)]
    for body in sent:
        publish(opened, body)
    opened.save()
    real = os.open

    def read_only(path: Any, flags: int, *mode: int, **options: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *mode, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        assert everything(opened) == sent
    opened.close()
