"""What errors of the source tell the user to change: its own options, or those of a program that starts the query."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """To the user of one kind of query."""

    spool: str
    """The option that names the spool."""
    lost: str
    """How to go on without rows that are lost to it."""


_GOES_ON = "set failOnDataLoss=false to go on with what is there"
OF_BATCH = Advice("spoolDir", _GOES_ON)
OF_STREAM = Advice("spoolDir", f"start with a new checkpoint, or {_GOES_ON}")
