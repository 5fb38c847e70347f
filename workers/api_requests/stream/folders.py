"""The job's folders, and who may work in them: one job at a time, and an output belongs to one state for good."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from uuid import uuid4

from framework import FrameworkError, WrongUse
from workers.api_requests import durable
from workers.api_requests.collect.topics import CHANNELS
from workers.api_requests.stream import earlier
from workers.api_requests.stream.checkpoint import Checkpoint
from workers.api_requests.stream.output import LocalOutput, Output
from workers.api_requests.stream.tally import Tally

CHECKPOINTS = "checkpoints"
TALLY = "tally"
_NAME = "name"
_SINCE = "from"
"""In the state: the time with which it began, where one was said."""
_ZONE = "zone"
"""In the state: the time zone with which it began."""
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_ROOM = 1 << 20
"""Bytes: what did not fit is gone when one looks, and left some."""
_OWNER = ".job"
"""In the output: the name of the state that it belongs to."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The job's folders."""

    spool: Path
    output: Output
    state: Path


def take(folders: Folders) -> int:
    """Make the folders, and lock them; returns a handle whose lock ends with the process.

    Batches have their numbers from the state, and a batch's files replace those of the same number. So a job with another
    state, a fresh one too, would replace what this output holds: it is refused. Raises WrongUse, having changed nothing there.
    """
    _check_apart(folders)
    _check_there(folders)
    _check_checkpoints(folders.state)
    try:
        folders.state.mkdir(parents=True, exist_ok=True)
        folders.output.make("")
        handle = os.open(folders.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _not_ours(error) from None
    try:
        _lock(handle, folders.state)
        try:
            _own(folders)
        except OSError as error:
            raise _not_ours(error) if error.errno in _REFUSED else error from None
        if isinstance(folders.output, LocalOutput):
            earlier.adopt(folders.output.folder)
    except BaseException:
        os.close(handle)
        raise
    return handle


def beginning(state: Path, since: datetime | None) -> datetime | None:
    """Whose lines this state begins with: those that the queue took at ``since`` or later; None for all. Said once for good.

    Raises WrongUse where the state has begun otherwise.
    """
    path = state / _SINCE
    if since is None:
        return datetime.fromisoformat(path.read_text()) if path.exists() else None
    worked = (state / CHECKPOINTS).exists() and not path.exists()
    said = "with what the spool held" if worked else durable.write_first(path, since.astimezone(UTC).isoformat())
    if worked or datetime.fromisoformat(said) != since:
        raise WrongUse(
            f"--from {since.isoformat()}: the job of --state {state} began {said if worked else f'with {said}'}, and "
            "goes on from there: leave --from out, or name an empty --state and an empty --output"
        )
    return since


def check_spools(spool: Path) -> None:
    """Raises WrongUse where one of the channels' spools was never made: a run that ends by itself would find nothing there, this
    time and each next one."""
    if words := without_spools(spool):
        raise WrongUse(
            f"{words}: name the folder that the handlers land in; where they have landed nothing so far, --follow waits for them"
        )


def without_spools(spool: Path) -> str:
    """In words, which of the channels' spools were never made; empty where all were."""
    missing = [name for name in CHANNELS if _is_missing(spool / name)]
    return f"--spool {spool}: there is no spool in {', '.join(missing)}" if missing else ""


def _is_missing(spool: Path) -> bool:
    """Whether no collector has a folder there: the spool itself is made by a query, too."""
    try:
        with os.scandir(spool) as there:
            return not any(one.is_dir() for one in there)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # the query says what is wrong with it
        return False


def check_zone(state: Path, zone: str) -> None:
    """Raises WrongUse for another time zone than the job began with: an hour would be in one date of the archive before and in
    another one after. Said once for good, as the first run has it."""
    begun = durable.write_first(state / _ZONE, zone)
    if begun != zone:
        raise WrongUse(
            f"the time zone is {zone}, and the dates of --output are those of {begun}: say --time-zone {begun}, or begin anew "
            f"with an empty --state (it is {state}) and an empty --output"
        )


class Gone(FrameworkError):
    """The output is not where it was."""


def obstacles(places: Mapping[str, Path]) -> str:
    """Which of them, by their options, lie on a disk that has no room left, or may not be written to, in words; empty where all
    can be written.

    What Spark and SQLite say of either names no file, or no fix.
    """
    there = {f"{option} {place}": place for option, place in places.items() if place.exists()}
    full = [f"the disk of {name} is full" for name, place in there.items() if _free(place) < _ROOM]
    closed = [f"{name} may not be written to" for name, place in there.items() if not os.access(place, os.W_OK)]
    said = [(full, "make room there"), (closed, "see to its rights and its mount")]
    return "".join(f"; {' and '.join(some)}: {fix}, and the job goes on where it was" for some, fix in said if some)


def _free(place: Path) -> int:
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize


def check_output(folders: Folders) -> None:
    """Raises Gone when the output is not the folder that ``take`` took: what is written now would not be beside the rest."""
    if folders.output.read(_OWNER) != (folders.state / _NAME).read_bytes():
        raise Gone(_moved(folders))


def _not_ours(error: OSError) -> WrongUse:
    if not error.filename:  # Hadoop's words, which name the URL, and may say that nobody is there
        return WrongUse(f"{error}: see whether it is up, or name folders that you may write to")
    return WrongUse(f"{error.filename}: {error.strerror}: name folders that you may write to")


def _check_apart(folders: Folders) -> None:
    """The spool and the output have folders named archive, growth and spam each: who reads one of them would find there what
    another folder of the job holds."""
    output = folders.output.folder.resolve() if isinstance(folders.output, LocalOutput) else None
    if output == folders.spool.resolve():
        raise WrongUse(
            f"--output {folders.output} is the folder of --spool: name another one, as both have a folder named archive"
        )
    places = {"--spool": folders.spool.resolve(), "--state": folders.state.resolve()} | ({"--output": output} if output else {})
    for inner, outer in permutations(places, 2):
        taken = next((places[outer] / name for name in CHANNELS if places[inner].is_relative_to(places[outer] / name)), None)
        if taken and outer != "--state":
            raise WrongUse(f"{inner} {places[inner]} lies in {taken}, which {outer} has for its own: name a folder outside of it")


def _check_there(folders: Folders) -> None:
    """Batches that were done are not done again: without what they wrote, the output would lack it for good."""
    done = any((folders.state / TALLY).glob("*.json"))
    if done and folders.output.read(_OWNER) is None and not folders.output.has_tables():
        raise WrongUse(_moved(folders))


def _check_checkpoints(state: Path) -> None:
    """Spark would begin with batch 0 again, and its lines would go for those of the batch that had this number."""
    for path in sorted((state / TALLY).glob("*.json")):
        checkpoint, done = Checkpoint(state / CHECKPOINTS / path.stem), Tally(path).last
        begun = checkpoint.last_begun()
        if done is not None and (begun is None or begun < done):
            raise WrongUse(
                f"--state {state}: batch {done} of {path.stem} is done, and {checkpoint.folder} does not know it any more: put "
                "back what was there, and the job goes on where it was; if it is lost, begin anew with an empty --state and an "
                "empty --output, and publish the lines again"
            )


def _moved(folders: Folders) -> str:
    return (
        f"--output {folders.output} is not there any more, or is another folder: put it back, and the job goes on where it was; "
        f"if it is lost, begin anew with an empty --state (it is {folders.state}) and publish the lines again"
    )


def _lock(handle: int, state: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WrongUse(f"--state {state}: another job works in this folder; stop it, or name another folder") from None
    except OSError as error:
        raise WrongUse(f"--state {state}: it cannot be locked: {error.strerror}; name a folder of another file system") from None


def _own(folders: Folders) -> None:
    name = durable.write_first(folders.state / _NAME, str(uuid4()))
    # Earlier versions named no owner: then the state must at least be one that has worked before.
    worked = (folders.state / CHECKPOINTS).exists()
    if folders.output.read(_OWNER) is not None or worked or not folders.output.has_tables():
        is_ours = folders.output.claim(_OWNER, name) == name
    else:
        is_ours = False
    if not is_ours:
        raise WrongUse(
            f"--output {folders.output} holds what a job with another state wrote, and would have its files replaced: "
            f"name the --state of that job, or an empty folder (--state is {folders.state})"
        )
