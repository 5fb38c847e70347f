"""Spark's checkpoint of one stream, as far as the job looks into it: what a kill left there, and how far the stream is.

Source of the format: Spark's OffsetSeqLog and CommitLog, a file named by its number for each batch; that of an offset has its
version, what holds for the batch, and a line for each source.
"""

from __future__ import annotations

from pathlib import Path


class Checkpoint:
    """The one in ``folder``, which Spark makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def clear_halves(self) -> None:
        """Remove what Spark did not get to rename: a kill or a full disk leaves it, and no first batch begins beside it."""
        for log in ("offsets", "commits"):
            for pattern in (".*.tmp", "..*.tmp.crc"):
                for half in (self.folder / log).glob(pattern):
                    half.unlink(missing_ok=True)

    def last_done(self) -> int | None:
        """The number of the last batch that Spark takes for done; None before the first."""
        return self._last("commits")

    def last_begun(self) -> int | None:
        """The number of the last batch of which Spark knows what is in it, and which it does again; None before the first."""
        return self._last("offsets")

    def _last(self, log: str) -> int | None:
        return max((int(path.name) for path in (self.folder / log).glob("[0-9]*")), default=None)

    def end_of(self, batch: int) -> str | None:
        """The offset of the only source after ``batch``, in JSON; None where it is not there."""
        try:
            return (self.folder / "offsets" / str(batch)).read_text().splitlines()[-1]
        except (OSError, IndexError):
            return None
