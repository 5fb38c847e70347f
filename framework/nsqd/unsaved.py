"""What the storage has yet to learn of the messages of a channel that are not in order: requeued, deferred, finished early."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from framework.nsqd.lease import Message
from framework.nsqd.store import ChannelSave, Retry
from framework.nsqd.store.index import FINISHED


class Changes(NamedTuple):
    """Since the last save."""

    put: dict[int, Retry]
    drop: set[int]
    clear: bool


class Unsaved:
    """The changes of one channel since its last save."""

    def __init__(self) -> None:
        self._put: dict[int, Retry] = {}
        self._drop: set[int] = set()
        self._clear = False

    def put(self, message: Message, due: int) -> None:
        """It waits until ``due`` (ms of the store's clock; 0: for nothing)."""
        message.has_row = True
        self._drop.discard(message.seq)
        self._put[message.seq] = Retry(due, message.attempts)

    def finish_early(self, seq: int) -> None:
        """It was finished before the cursor came to it."""
        self._put[seq] = Retry(FINISHED, 0)

    def drop(self, seq: int) -> None:
        """It is finished, and the cursor is behind it."""
        self._put.pop(seq, None)
        self._drop.add(seq)

    def clear(self) -> None:
        """All was emptied."""
        self._put, self._drop, self._clear = {}, set(), True

    def take(self, passed: Iterable[int]) -> Changes:
        """For a save. ``passed``: what was finished early and is behind the cursor now."""
        put, self._put = self._put, {}
        drop, self._drop = self._drop, set()
        for seq in passed:
            put.pop(seq, None)
            drop.add(seq)
        clear, self._clear = self._clear, False
        return Changes(put, drop, clear)

    def give_back(self, save: ChannelSave) -> None:
        """It could not be kept: its changes belong to the next, unless all was emptied since."""
        if not self._clear:
            self._put = {**{seq: row for seq, row in save.put.items() if seq not in self._drop}, **self._put}
            self._drop |= {seq for seq in save.drop if seq not in self._put}
        self._clear |= save.clear
