"""The job's folders, and who may work in them: one job at a time, and an output belongs to one state for good."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from framework import FrameworkError, WrongUse
from workers.api_requests.job import durable

CHECKPOINTS = "checkpoints"
TALLY = "tally"
_NAME = "name"
_SINCE = "from"
"""In the state: the time with which it began, where one was said."""
_OWNER = ".job"
"""In the output: the name of the state that it belongs to."""


@dataclass(frozen=True, slots=True)
class Places:
    """The job's folders."""

    spool: Path
    output: Path
    state: Path


def take(places: Places) -> int:
    """Make the folders, and lock them; returns a handle whose lock ends with the process.

    Batches have their numbers from the state, and a batch's files replace those of the same number. So a job with another
    state, a fresh one too, would replace what this output holds: it is refused. Raises WrongUse, having changed nothing there.
    """
    _check_there(places)
    try:
        places.state.mkdir(parents=True, exist_ok=True)
        places.output.mkdir(parents=True, exist_ok=True)
        handle = os.open(places.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise WrongUse(f"{error.filename}: {error.strerror}: name folders that you may write to") from None
    try:
        _lock(handle, places.state)
        _check_moves(places)
        _own(places)
    except BaseException:
        os.close(handle)
        raise
    return handle


def beginning(places: Places, since: datetime | None) -> datetime | None:
    """Whose lines this state begins with: those that the queue took at ``since`` or later; None for all. Said once for good.

    Raises WrongUse where the state has begun otherwise.
    """
    path = places.state / _SINCE
    if since is None:
        return datetime.fromisoformat(path.read_text()) if path.exists() else None
    worked = (places.state / CHECKPOINTS).exists() and not path.exists()
    said = "with what the spool held" if worked else durable.write_first(path, since.astimezone(UTC).isoformat())
    if worked or datetime.fromisoformat(said) != since:
        raise WrongUse(
            f"--from {since.isoformat()}: the job of --state {places.state} began {said if worked else f'with {said}'}, and goes "
            "on from there: leave --from out, or name an empty --state and an empty --output"
        )
    return since


class Gone(FrameworkError):
    """The output is not where it was."""


def check_output(places: Places) -> None:
    """Raises Gone when the output is not the folder that ``take`` took: what is written now would not be beside the rest."""
    try:
        there = (places.output / _OWNER).read_text() == (places.state / _NAME).read_text()
    except OSError:
        there = False
    if not there:
        raise Gone(_moved(places)) from None


def _check_there(places: Places) -> None:
    """Batches that were done are not done again: without what they wrote, the output would lack it for good."""
    done = any((places.state / TALLY).glob("*.json"))
    if done and not (places.output / _OWNER).exists() and not any(places.output.rglob("*.parquet")):
        raise WrongUse(_moved(places))


def _moved(places: Places) -> str:
    return (
        f"--output {places.output} is not there any more, or is another folder: put it back, and the job goes on where it was; "
        f"if it is lost, begin anew with an empty --state (it is {places.state}) and publish the lines again"
    )


def _lock(handle: int, state: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WrongUse(f"--state {state}: another job works in this folder; stop it, or name another folder") from None
    except OSError as error:
        raise WrongUse(f"--state {state}: it cannot be locked: {error.strerror}; name a folder of another file system") from None


def _check_moves(places: Places) -> None:
    """Complete files are given their place in the output in one step, which no move between file systems is."""
    if places.state.stat().st_dev != places.output.stat().st_dev:
        raise WrongUse(f"--state {places.state} and --output {places.output} are on two file systems: name folders of one")


def _own(places: Places) -> None:
    owner = places.output / _OWNER
    name = durable.write_first(places.state / _NAME, str(uuid4()))
    # Earlier versions named no owner: then the state must at least be one that has worked before.
    if owner.exists() or (places.state / CHECKPOINTS).exists() or not any(places.output.rglob("*.parquet")):
        is_ours = durable.write_first(owner, name) == name
    else:
        is_ours = False
    if not is_ours:
        raise WrongUse(
            f"--output {places.output} holds what a job with another state wrote, and would have its files replaced: "
            f"name the --state of that job, or an empty folder (--state is {places.state})"
        )
