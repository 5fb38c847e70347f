"""An HTTP answer that is an error, raised by whatever finds out."""

from __future__ import annotations


class Status(Exception):
    """An answer other than 200; ``words`` are NSQ's."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words
