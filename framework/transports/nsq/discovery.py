"""Asks every nsqlookupd at once, and remembers the last answer of each: one that fails removes no node."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import gevent

from framework.errors import BrokerUnreachable, FrameworkError
from framework.observe import hublog
from framework.transports.addresses import is_address
from framework.transports.nsq.http import TIMEOUT, Lookupd, Producer
from framework.transports.nsq.register import Register
from framework.transports.nsq.urls import Options, join_address

log = hublog.get(__name__)
GRACE = 0.5
"""Seconds that the others have once one has answered. What comes later is remembered for the next time."""
LOST = 60.0
"""Seconds for which a node is still named that is gone from an nsqlookupd with all its topics: most are being restarted."""
_SHOWN = 80
"""Characters of an address that is none, in the log."""
_MOST_LOGGED = 100
"""Of these, in the life of a process."""
_ALL = ""  # the key of /nodes in the memory, beside those of topics
_DEFAULTS = Options()


class Discovery:
    """The nsqds that several nsqlookupds know of, keyed by broadcast address and TCP port."""

    def __init__(self, lookupds: Sequence[str], options: Options = _DEFAULTS, *, timeout: float = TIMEOUT) -> None:
        self._registers = [Register(Lookupd.of(address, options, timeout=timeout)) for address in lookupds]
        self._known: dict[tuple[str, str], frozenset[str]] = {}
        self._http: dict[str, str] = {}
        self._lost: dict[str, dict[str, float]] = {}
        """Topic -> nodes that no longer are anywhere -> until when they are named all the same."""
        self._silent: set[str] = set()
        self._unusable: set[str] = set()
        """Nodes that have no address, and were logged."""

    def lookup(self, topic: str) -> set[str]:
        """The nodes that have ``topic`` and are not tombstoned for it, and those that had it when they were lost a moment ago.
        Blocks, for the timeout of two requests at most.

        Raises BrokerUnreachable when no nsqlookupd answered.
        """
        return self._ask(topic, lambda register: register.lookup(topic))

    def nodes(self) -> set[str]:
        """Every node but those whose topics are all tombstoned. Raises BrokerUnreachable when no nsqlookupd answered."""
        return self._ask(_ALL, lambda register: [producer for producer in register.lookupd.nodes() if not producer.tombstoned])

    def _ask(self, key: str, question: Callable[[Register], Iterable[Producer]]) -> set[str]:
        asked = [gevent.spawn(self._answer, register, key, question) for register in self._registers]
        for one in gevent.iwait(asked):
            if not one.value:  # an answer: none that is slow or dead may keep it back for long
                gevent.joinall(asked, timeout=GRACE)
                break
        failures = [one.value for one in asked if one.value]
        if failures and len(failures) == len(asked):
            raise BrokerUnreachable(f"no nsqlookupd answered: {'; '.join(failures)}")
        return self.known(key)

    def http_of(self, node: str) -> str:
        """Where ``node`` answers HTTP, ``host:port``; empty where no nsqlookupd has said so."""
        return self._http.get(node, "")

    def known(self, key: str = _ALL) -> set[str]:
        """The union of what each nsqlookupd said last of a topic (or, without one, of all nodes)."""
        named = set().union(*(self._known.get((one.address, key), frozenset()) for one in self._registers))
        now = time.monotonic()
        lost = {node: until for node, until in self._lost.pop(key, {}).items() if node not in named and until > now}
        if lost:
            self._lost[key] = lost
        return named | lost.keys()

    def everywhere(self) -> set[str]:
        """The nodes that each nsqlookupd named last, for whatever it was asked."""
        return set().union(*self._known.values())

    def _answer(self, register: Register, key: str, question: Callable[[Register], Iterable[Producer]]) -> str:
        """Ask one and remember; the words of the failure, empty when there was none."""
        try:
            self._learn(register, key, list(question(register)))
        except FrameworkError as error:
            # Every handler asks every few seconds: one that stays away for hours must not fill the log.
            log.log(
                logging.DEBUG if register.address in self._silent else logging.WARNING, "%s; its nodes stay as they were", error
            )
            self._silent.add(register.address)
            return str(error)
        except Exception as error:
            log.exception("nsqlookupd %s: asking it failed, which is a bug; its nodes stay as they were", register.address)
            return f"nsqlookupd {register.address}: {type(error).__name__}: {error}"
        if register.address in self._silent:
            self._silent.discard(register.address)
            log.info("nsqlookupd %s answers again", register.address)
        return ""

    def _learn(self, register: Register, key: str, producers: Sequence[Producer]) -> None:
        """A node that has left this topic only, which is being deleted there, is forgotten: to subscribe makes the topic anew."""
        producers = [one for one in producers if self._is_usable(register, one)]
        self._http.update((one.node, join_address(one.broadcast_address, one.http_port)) for one in producers if one.http_port)
        nodes = frozenset(producer.node for producer in producers)
        before = self._known.get((register.address, key), frozenset())
        if key != _ALL and before - nodes:
            until = time.monotonic() + LOST
            self._lost.setdefault(key, {}).update(dict.fromkeys(before - nodes - register.everyone(), until))
        self._known[register.address, key] = nodes

    def _is_usable(self, register: Register, producer: Producer) -> bool:
        """An nsqlookupd takes any text for an address. What is none would be dialled, and logged as it is, for ever."""
        if is_address(producer.broadcast_address, producer.tcp_port):
            return True
        named = f"{producer.broadcast_address[:_SHOWN]!a}, port {producer.tcp_port}"
        if named not in self._unusable and len(self._unusable) < _MOST_LOGGED:
            self._unusable.add(named)
            log.warning(
                "nsqlookupd %s names an nsqd at no address, %s; it is left out: mend its --broadcast-address",
                register.address, named,
            )  # fmt: skip
        return False
