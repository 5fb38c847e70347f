"""A spool as its readers see it: where it lies, its epoch, and who collects into it. It needs neither gevent nor a broker."""

from __future__ import annotations

import errno
import os
import re
from itertools import combinations
from pathlib import Path
from uuid import uuid4

from framework.errors import WrongUse
from framework.spool.arrow import SpoolError
from framework.spool.faults import content_of
from framework.spool.files import sync_folder
from framework.spool.storage import Location, Remote, StorageError
from framework.spool.urls import is_url, storage_of

EPOCH = "epoch"
_LIFE = re.compile(r"[0-9A-Za-z-]{1,64}")
_FOR_A_SHELL = re.compile(r"(~[^/]*|\$\w+|\$\{\w+\})(/|$)")
COLLECTOR = re.compile(r"[a-zA-Z0-9_-][.a-zA-Z0-9_-]{0,63}")


def root_of(given: str | os.PathLike[str] | Remote) -> Location:
    """Where the spool lies. Raises WrongUse for what is no path, or one that only a shell knows; and for a URL of a storage that
    there is not, or whose library is not installed."""
    if isinstance(given, Remote):
        return given
    name = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(name, str) or not name or "\0" in name or not _can_be_said(name):
        raise WrongUse(f"{given!r:.200} is no folder that a spool can lie in: give its path, or a URL such as s3://bucket/spool")
    if said := _FOR_A_SHELL.match(name):  # of each user it would be another folder; taken as it is, one with that name
        raise WrongUse(f"spool {name!r}: {said[1]} is a shell's word, and none has replaced it: give the whole path")
    return storage_of(name) if is_url(name) else Path(name)


def _can_be_said(name: str) -> bool:
    """To a file system, which may have bytes that are no text, or to a storage, which has none."""
    try:
        name.encode() if is_url(name) else os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def ensure_epoch(root: Location) -> str:
    """The UUID of this life of the spool; the first process that comes makes it, durably."""
    known = epoch(root)
    if known is not None:
        return known
    fresh = str(uuid4())
    if isinstance(root, Path):
        _link_epoch(root, fresh)
    elif (root / EPOCH).put(f"{fresh}\n".encode()):
        return fresh
    known = epoch(root)
    if known is None:
        raise FileNotFoundError(f"the epoch of spool {root} was deleted just now")
    return known


def check_exclusive(root: Remote, life: str) -> None:
    """Raises StorageError where the storage puts over what is there though it was told not to: it would lose segments."""
    if (root / EPOCH).put(f"{life}\n".encode()):
        raise StorageError(
            errno.ENOTSUP, f"{root} ignores If-None-Match, so two collectors could take one number: no spool can lie there"
        )


def _link_epoch(root: Path, fresh: str) -> None:
    root.mkdir(parents=True, exist_ok=True)
    file = root / f"{uuid4().hex}.tmp"
    try:
        with file.open("x") as writing:
            writing.write(f"{fresh}\n")
            writing.flush()
            os.fsync(writing.fileno())
        try:
            os.link(file, root / EPOCH)
        except FileExistsError:
            pass
    finally:
        file.unlink(missing_ok=True)
    sync_folder(root)


def epoch(root: Location) -> str | None:
    """The spool's epoch; None when there is no spool yet. Raises SpoolError for a file that says none."""
    file = root / EPOCH
    try:
        content = content_of(file) if isinstance(file, Path) else bytes(file.read())
    except FileNotFoundError:
        return None
    said = content.decode(errors="replace").strip()
    if not _LIFE.fullmatch(said):
        elsewhere = "" if isinstance(root, Path) else ", and see that it is the storage's server that answers"
        raise SpoolError(f"spool {root}: its file {EPOCH} is damaged: put back what it said, or begin an empty folder{elsewhere}")
    return said


def collectors(root: Location) -> list[str]:
    """The names of the collectors that have a folder in the spool, sorted."""
    if not isinstance(root, Path):
        names = [entry.name[:-1] for entry in root.list() if entry.name.endswith("/")]
        return sorted(name for name in names if COLLECTOR.fullmatch(name))
    try:
        with os.scandir(root) as entries:
            return sorted(entry.name for entry in entries if COLLECTOR.fullmatch(entry.name) and entry.is_dir())
    except FileNotFoundError:
        return []


def lives_of(root: Location) -> dict[str, str]:
    """Collector -> which life of its folder this is; without those of earlier versions, which say none. Raises as ``epoch``, and
    SpoolError where one is a copy of another: its rows would be read twice."""
    for _ in range(2):  # a folder that is renamed just now may be seen under both names
        found = {name: life for name in collectors(root) if (life := epoch(root / name)) is not None}
        if len(set(found.values())) == len(found):
            return found
    one, two = next((one, two) for one, two in combinations(found, 2) if found[one] == found[two])
    raise SpoolError(
        f"spool {root}: the folders {one} and {two} have one {EPOCH}, so one is a copy of the other, and its rows would be read "
        "twice: move the copy out of the spool"
    )
