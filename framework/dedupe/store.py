"""Where the keys of handled messages are kept: what a store promises, and the one in the memory of a process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from time import monotonic
from typing import Literal, Protocol, TypeAlias

from gevent import monkey

Claim: TypeAlias = Literal["new", "done", "claimed"]
"""What became of the claim of a key: it is the caller's now; its message was handled before; another call has claimed it."""


class KeyStore(Protocol):
    """Where the keys of handled messages are kept. An object with these three methods is one, whatever it is derived from.

    It is called where the handler runs, from many greenlets or threads at once. What it raises before a call fails the message,
    and what it raises after one is logged. It forgets keys by itself.
    """

    def claim(self, keys: Sequence[str], token: str, seconds: float) -> Sequence[Claim]:
        """For each of ``keys``, all different: "new", and from now on it is claimed by ``token``, for ``seconds`` at the most;
        "done"; or "claimed" by another token whose seconds are not over. Of two that claim one key at once, one gets "new"."""

    def done(self, keys: Sequence[str], token: str) -> None:
        """The messages of ``keys`` have been handled: keep that durably, also where the claim is over by now."""

    def release(self, keys: Sequence[str], token: str) -> None:
        """They have not been handled: forget the claims of ``token``, and nobody else's."""


class MemoryStore:
    """``KeyStore`` in this process. A claim lasts until its call ends: no other process can be told of it."""

    def __init__(self, age: float, most: int) -> None:
        """``age``: seconds that a key is kept. ``most``: the keys of handled messages, at most."""
        self._age = age
        self._most = most
        self._done: OrderedDict[str, float] = (
            OrderedDict()
        )  # of a dict, finding the oldest takes longer with each that was deleted
        """Key -> when it is forgotten, the oldest first."""
        self._claimed: dict[str, str] = {}
        self._lock = monkey.get_original("_thread", "allocate_lock")()  # threads may share it, and no greenlet waits under it

    def claim(self, keys: Sequence[str], token: str, seconds: float) -> list[Claim]:
        with self._lock:
            self._forget()
            return [self._claim(key, token) for key in keys]

    def _claim(self, key: str, token: str) -> Claim:
        if key in self._done:
            return "done"
        return "new" if self._claimed.setdefault(key, token) == token else "claimed"

    def done(self, keys: Sequence[str], token: str) -> None:
        until = monotonic() + self._age
        with self._lock:
            for key in keys:
                self._done[key] = until
                self._done.move_to_end(key)
            self._drop(keys, token)
            self._forget()

    def release(self, keys: Sequence[str], token: str) -> None:
        with self._lock:
            self._drop(keys, token)

    def _drop(self, keys: Sequence[str], token: str) -> None:
        for key in keys:
            if self._claimed.get(key) == token:
                del self._claimed[key]

    def _forget(self) -> None:
        """What is too old or too many."""
        now = monotonic()
        while self._done and (len(self._done) > self._most or next(iter(self._done.values())) <= now):
            self._done.popitem(last=False)
