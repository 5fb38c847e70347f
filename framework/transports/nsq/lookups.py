"""Asks every nsqlookupd at once for all nodes there are, now. It remembers which of them are silent, and no node."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

import gevent

from framework.errors import BrokerUnreachable, FrameworkError
from framework.transports.nsq.http import Lookupd, Producer

A_MOMENT = 0.25
"""Seconds that those have that were silent before, where none else answers."""


class Lookups:
    """Those of ``lookupds``. One that gave no answer is asked again, and not waited for until it has given one."""

    def __init__(self, lookupds: Iterable[Lookupd]) -> None:
        self._lookupds = list(lookupds)
        self._silent: dict[Lookupd, FrameworkError] = {}
        """Those that gave no answer, and why."""
        self._asked_at: dict[Lookupd, float] = {}

    def producers(self) -> list[list[Producer]]:
        """What each said that answered. Raises BrokerUnreachable where there are some and none did."""
        now = monotonic()
        waited_for = [one for one in self._lookupds if one not in self._silent]
        due = [one for one in self._silent if now - self._asked_at[one] > one.timeout]
        self._asked_at |= dict.fromkeys(waited_for + due, now)
        asked = {one: gevent.spawn(self._answer, one) for one in self._lookupds if one in waited_for or one in due}
        gevent.joinall([asked[one] for one in waited_for])
        if all(one.value is None for one in asked.values()):
            gevent.joinall([asked[one] for one in due], timeout=A_MOMENT)
        said = [one.value for one in asked.values() if one.value is not None]
        if self._lookupds and not said:
            raise BrokerUnreachable("; ".join(str(self._silent[one]) for one in self._lookupds if one in self._silent))
        return said

    def _answer(self, lookupd: Lookupd) -> list[Producer] | None:
        try:
            answer = lookupd.nodes()
        except FrameworkError as error:
            self._silent[lookupd] = error
            return None
        self._silent.pop(lookupd, None)
        return answer
