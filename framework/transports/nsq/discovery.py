"""Asks every nsqlookupd at once, and remembers the last answer of each: one that fails removes no node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import gevent

from framework.errors import BrokerUnreachable, FrameworkError
from framework.transports.nsq.http import TIMEOUT, Lookupd, Producer
from framework.transports.nsq.urls import Options

log = logging.getLogger(__name__)
GRACE = 0.5
"""Seconds that the others have once one has answered. What comes later is remembered for the next time."""
_ALL = ""  # the key of /nodes in the memory, beside those of topics
_DEFAULTS = Options()


class Discovery:
    """The nsqds that several nsqlookupds know of, keyed by broadcast address and TCP port."""

    def __init__(self, lookupds: Sequence[str], options: Options = _DEFAULTS, *, timeout: float = TIMEOUT) -> None:
        self._lookupds = [Lookupd.of(address, options, timeout=timeout) for address in lookupds]
        self._known: dict[tuple[str, str], frozenset[str]] = {}
        self._silent: set[str] = set()

    def lookup(self, topic: str) -> set[str]:
        """The nodes that have ``topic`` and are not tombstoned for it. Blocks, for the timeout of one request at most.

        Raises BrokerUnreachable when no nsqlookupd answered.
        """
        return self._ask(topic, lambda lookupd: lookupd.lookup(topic).producers)

    def nodes(self) -> set[str]:
        """Every node but those whose topics are all tombstoned. Raises BrokerUnreachable when no nsqlookupd answered."""
        return self._ask(_ALL, lambda lookupd: [producer for producer in lookupd.nodes() if not producer.buried])

    def _ask(self, key: str, question: Callable[[Lookupd], Iterable[Producer]]) -> set[str]:
        asked = [gevent.spawn(self._answer, lookupd, key, question) for lookupd in self._lookupds]
        for one in gevent.iwait(asked):
            if not one.value:  # an answer: none that is slow or dead may keep it back for long
                gevent.joinall(asked, timeout=GRACE)
                break
        failures = [one.value for one in asked if one.value]
        if failures and len(failures) == len(asked):
            raise BrokerUnreachable(f"no nsqlookupd answered: {'; '.join(failures)}")
        return self.known(key)

    def known(self, key: str = _ALL) -> set[str]:
        """The union of what each nsqlookupd said last of a topic (or, without one, of all nodes)."""
        return set().union(*(self._known.get((one.address, key), frozenset()) for one in self._lookupds))

    def _answer(self, lookupd: Lookupd, key: str, question: Callable[[Lookupd], Iterable[Producer]]) -> str:
        """Ask one and remember; the words of the failure, empty when there was none."""
        try:
            self._known[lookupd.address, key] = frozenset(producer.node for producer in question(lookupd))
        except FrameworkError as error:
            # Every handler asks every few seconds: one that stays away for hours must not fill the log.
            log.log(
                logging.DEBUG if lookupd.address in self._silent else logging.WARNING, "%s; its nodes stay as they were", error
            )
            self._silent.add(lookupd.address)
            return str(error)
        if lookupd.address in self._silent:
            self._silent.discard(lookupd.address)
            log.info("nsqlookupd %s answers again", lookupd.address)
        return ""
