"""Tells the messages that a broker had taken before a moment from those that came later, whatever the clocks of its nodes say."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from framework.errors import FrameworkError
from framework.message import Message
from framework.transports.contract import TellsTime, Transport

_log = logging.getLogger(__name__)


class Start:
    """The moment at which it is made."""

    def __init__(self) -> None:
        self._wall = time.time()
        self._monotonic = time.monotonic()
        self._by_node: dict[str, float] = {}
        """Node -> what its clock said at the start, at the most."""

    def precedes(self, messages: Iterable[Message], transports: Sequence[Transport]) -> bool:
        """Whether some of them may be from before. Asks a node for its time when the first message of it is seen; blocks."""
        oldest: dict[str, int] = {}
        for message in messages:
            oldest[message.node] = min(message.timestamp, oldest.get(message.node, message.timestamp))
        return any(at < 1e9 * self._at(node, transports) for node, at in oldest.items())

    def _at(self, node: str, transports: Sequence[Transport]) -> float:
        if node not in self._by_node:
            self._by_node[node] = self._asked(node, [one for one in transports if isinstance(one, TellsTime)])
        return self._by_node[node]

    def _asked(self, node: str, transports: Sequence[TellsTime]) -> float:
        """Its time less what has passed since. Ours, where nobody says."""
        for transport in transports:
            passed = time.monotonic() - self._monotonic
            try:
                return transport.clock_of(node) - passed
            except FrameworkError as error:
                _log.warning(
                    "%s does not say what time it is (%s), so this run goes by the clock of this machine for what was there when "
                    "it began: if the two differ, it ends early and leaves the rest to the next run, or goes on while "
                    "messages come",
                    node,
                    error,
                )
        return self._wall
