"""Which format a data folder has: said in its ``meta.json``, judged before anything else of the folder is opened.

The next format gets the next number, and a step in ``STEPS`` that makes a folder of the one before to one of its own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from framework.decoding import UNREADABLE, prepared
from framework.errors import WrongUse
from framework.nsqd.store import salting
from framework.nsqd.store.files import IN_THE_WAY, explain, odd_file, sync_folder, write_synced

FORMAT = 1
"""What is written. 1: records of ``framework.nsqd.store.record``, in segments that say their numbers, beside index.db."""
CHANGES = 2
"""The same, and there may be declarations that name changes alone. A folder gets it with the first of these: one without topics
of very many channels can be read by older versions."""
STEPS: Mapping[int, Callable[[Path], None]] = {}
"""Format -> what makes a folder of it to one of the next. A step may be cut short at any moment and done once more."""


class FolderUnusable(WrongUse):
    """The folder cannot be made, read or written, or was written by a newer version."""


@prepared
class _Numbered(msgspec.Struct, frozen=True):
    """What ``meta.json`` says in every format, of newer versions too."""

    format: int


@prepared
class Meta(_Numbered, frozen=True):
    """What it says in this one."""

    salt: int
    """Seeds the CRC of each record, so that one in the body of a message is not taken for a record."""


def judge(path: Path) -> None:
    """Raises FolderUnusable when a newer version wrote the folder; nothing of it was touched. One that is not there is good."""
    if (path / "meta.json").exists():
        read(path)
    else:
        _refuse_odd(path)


def read(path: Path) -> Meta:
    """What the folder is. Raises FolderUnusable."""
    file = path / "meta.json"
    _refuse_odd(path)
    try:
        said = file.read_bytes()
        number = msgspec.json.decode(said, type=_Numbered).format
        meta = msgspec.json.decode(said, type=Meta) if number in (FORMAT, CHANGES, *STEPS) else None
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FolderUnusable(f"{path} is no data folder of an nsqd: there is no meta.json in it") from error
    except OSError as error:
        raise FolderUnusable(explain(path, error)) from error
    except UNREADABLE as error:
        words = f"{file} is damaged ({error}): put it back from a copy, {_written(path)}or name another --data-path"
        raise FolderUnusable(words) from error
    if meta is None:
        raise FolderUnusable(
            f"{file} says format {number}, this version reads up to {max(FORMAT, CHANGES)}: run the version that wrote it, "
            "or name another --data-path; nothing was changed"
        )
    return meta


def _refuse_odd(path: Path) -> None:
    if (odd := odd_file(path)) is not None:
        raise FolderUnusable(f"the data folder {path} cannot be used: {odd} is no file; {IN_THE_WAY}")


def check_salt(path: Path, salt: int) -> None:
    """Raises FolderUnusable where the folder's log was written with another one, OSError. Each record would be taken for a
    damaged one, and all messages for lost."""
    if not salting.fits(path, salt) and (own := salting.of_log(path)) is not None:
        raise FolderUnusable(
            f"{path / 'meta.json'} says salt {salt}, its log was written with {own}: one of them is of another folder, or "
            "meta.json is damaged; put it back from a copy, or write that number into it. Nothing was changed"
        )


def _written(path: Path) -> str:
    """How a ``meta.json`` that is lost is made again, from what the log tells."""
    try:
        salt = salting.of_log(path)
    except OSError:
        salt = None
    return f'write {{"format":{max(FORMAT, CHANGES)},"salt":{salt}}} into it, ' if salt is not None else ""


def open_or_make(path: Path) -> Meta:
    """Have the folder, which must be locked, be of this version's format. Raises FolderUnusable, OSError."""
    file = path / "meta.json"
    if not file.exists():
        return _make(path)
    meta = read(path)
    while meta.format < FORMAT:
        STEPS[meta.format](path)
        meta = msgspec.structs.replace(meta, format=meta.format + 1)
        _write(file, meta)
    return meta


def allow_changes(path: Path) -> None:
    """Have the folder be of the format ``CHANGES``, durably. Raises OSError."""
    _write(path / "meta.json", msgspec.structs.replace(read(path), format=CHANGES))


def _make(path: Path) -> Meta:
    file = path / "meta.json"
    if any(path.glob("log/*.log")):
        raise FolderUnusable(
            f"{file} is missing beside a log, which cannot be read without it, as in a copy that was cut short: put it back "
            f"from a copy, {_written(path)}or name another --data-path"
        )
    meta = Meta(FORMAT, secrets.randbits(32))
    _write(file, meta)
    return meta


def _write(file: Path, meta: Meta) -> None:
    fresh = file.with_suffix(".new")
    write_synced(fresh, msgspec.json.encode(meta))
    fresh.replace(file)
    sync_folder(file.parent)
