"""The job's folders, and who may work in them: one job at a time, and an output belongs to one state for good."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from framework import WrongUse
from workers.api_requests.job import durable

CHECKPOINTS = "checkpoints"
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
    name = durable.write_first(places.state / "name", str(uuid4()))
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
