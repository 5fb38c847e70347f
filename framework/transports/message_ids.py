"""What tells the messages that one producer publishes from all others: for brokers and consumers that drop doubles by an id."""

from __future__ import annotations

import itertools
import secrets

from framework.forked import forget_in_child


class MessageIds:
    """A name that no other producer has, in this process or another, and numbers from 1 on."""

    def __init__(self) -> None:
        self.name = ""
        """16 hexadecimal digits."""
        self._begin()
        forget_in_child(self)

    def _begin(self) -> None:
        self.name = secrets.token_hex(8)
        self.numbers = itertools.count(1)

    def forget(self) -> None:
        """In a forked child: its parent goes on with these, and of two messages with one id the second counts as a double."""
        self._begin()
