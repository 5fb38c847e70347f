"""Where a message came from, for tests that land messages without a broker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class Source:
    """As much of a connection as a landed message is asked for."""

    node: str = "127.0.0.1:4150"
    topic: str = "orders"
    channel: str = "archive"
    lasting_ids: bool = False
