"""Where a spool lies that is no folder of a mounted file system: five verbs over names, and a path-like value for each name.

It knows neither segments nor a library; ``urls.py`` says which storages there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class StorageError(OSError):
    """A storage cannot do what was asked, in a sentence that names the fix (``strerror``). It never holds credentials."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(number, sentence)

    def __str__(self) -> str:
        return str(self.strerror)


class Entry(NamedTuple):
    """What a storage has under one name; a folder's name ends with ``/``."""

    name: str
    """In its folder."""
    size: int
    """In bytes."""
    modified: float
    """In seconds since 1970, by the storage's own clock."""


class Storage(Protocol):
    """Five verbs over names, which have slashes between folders. A folder is there when something is in it.

    What ``put`` has written is durable, whole and seen by everybody when it returns, and so is what ``list`` shows. Each verb
    raises StorageError. It pickles, and connects with its first verb. Safe to share between threads.
    """

    @property
    def url(self) -> str:
        """Of the folder that names begin in; for messages, so without credentials."""

    def put(self, name: str, content: Any, *, over: bool = False) -> bool:
        """Make ``content``, bytes or a buffer, all there is under ``name``. False where the name is taken, and nothing was
        written; with ``over`` what was there is replaced.

        After a StorageError nobody knows whether it was written, or will be yet.
        """

    def list(self, folder: str, after: str = "") -> Sequence[Entry]:
        """What is in ``folder``, "" being the outermost, with names behind ``after``. Empty where there is no such folder."""

    def read(self, name: str) -> Any:
        """All that was put, as a buffer. Raises FileNotFoundError."""

    def delete(self, name: str) -> None:
        """No error where there is nothing."""

    def exists(self, name: str) -> Entry | None:
        """What is there under ``name``; None where there is nothing."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A name in a storage, of a folder or of a file: what a Path is on a mounted file system."""

    storage: Storage
    key: str = ""

    def __truediv__(self, name: str) -> Remote:
        return Remote(self.storage, f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        return f"{self.storage.url}/{self.key}" if self.key else self.storage.url

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        return Remote(self.storage, self.key.rpartition("/")[0])

    def put(self, content: Any, *, over: bool = False) -> bool:
        return self.storage.put(self.key, content, over=over)

    def list(self, after: str = "") -> Sequence[Entry]:
        return self.storage.list(self.key, after)

    def read(self) -> Any:
        return self.storage.read(self.key)

    def delete(self) -> None:
        self.storage.delete(self.key)

    def exists(self) -> Entry | None:
        return self.storage.exists(self.key)


Location = Path | Remote
"""A folder or a file of a spool."""
