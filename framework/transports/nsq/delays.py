"""How long each nsqd may be asked to hold a message back: its ``--max-req-timeout``, which IDENTIFY does not tell.

nsqd cuts a longer REQ in silence, and ends the connection for a longer DPUB. So it is asked by HTTP before a connection is used;
what a refused DPUB says is learned as well; a ``max_req_timeout=`` in the broker URL is taken at its word. Where nothing
tells, nsqd's default holds. Source: nsqd/protocol_v2.go REQ and DPUB, nsqd/http.go doConfig.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import get_ident
from time import monotonic
from typing import Any

import gevent

from framework.errors import BrokerError, FrameworkError
from framework.observe import hublog
from framework.transports.nsq.http import Nsqd
from framework.transports.nsq.urls import Options

log = hublog.get(__name__)

MAX_DEFER = 3600.0
"""Seconds: the default of --max-req-timeout."""
PATIENCE = 1.0
"""Seconds that the question may take: a connection waits for its answer."""
FRESH = 2.0
"""Seconds for which an answer is not asked for again: many handlers connect at once, and a node that comes back may have
other flags."""
BLIND = 60.0
"""Seconds for which a node that did not answer is not asked again."""
_OUT_OF_RANGE = re.compile(r"DPUB timeout (\d+) out of range 0-(\d+)")


class LongestDelays:
    """The longest delay of each node, in seconds. ``learned()`` is called when the shortest of them has changed."""

    def __init__(self, options: Options, learned: Callable[[], None] = lambda: None) -> None:
        self._options = options
        self._told = options.max_req_timeout if options.max_req_timeout >= 0 else None
        self._learned = learned
        self.longest = MAX_DEFER if self._told is None else self._told
        """What every node takes that is known: a publish may go to any of them."""
        self._of: dict[str, float] = {}
        self._fresh_until: dict[str, float] = {}
        self._asking: dict[tuple[int, str], Any] = {}

    def of(self, node: str, http: str = "") -> float:
        """That of ``node``, which is asked unless it was just now; blocks, for ``PATIENCE`` at most.

        ``http``: where it answers HTTP, if that is not to be guessed from its TCP address."""
        if self._told is not None:
            return self._told
        if monotonic() >= self._fresh_until.get(node, 0.0):
            key = get_ident(), node  # each native thread has a hub of its own
            asking = self._asking.get(key)
            if asking is None:
                asking = self._asking[key] = gevent.spawn(self._ask, node, http)
                asking.rawlink(lambda _: self._asking.pop(key, None))
            asking.join()
        return self._of.get(node, MAX_DEFER)

    def learn(self, node: str, seconds: float) -> None:
        """``node`` has said so itself."""
        self._of[node] = seconds
        longest = min(list(self._of.values()))
        if longest != self.longest:
            self.longest = longest
            self._learned()

    def heard(self, node: str, error: BrokerError) -> str:
        """Learn from the refusal of a DPUB; a sentence for its publisher, empty for any other error."""
        found = _OUT_OF_RANGE.search(error.words)
        if found is None:
            return ""
        wanted, longest = (int(number) / 1e3 for number in found.groups())
        if self._told is None:
            self.learn(node, longest)
        return (
            f"nsqd {node} takes a delay of 0 to {longest:g} seconds (its --max-req-timeout), not {wanted:g}; "
            f"name it in the broker URL, max_req_timeout={longest:g}s"
        )

    def _ask(self, node: str, http: str) -> None:
        seconds, fresh = self._of.get(node, MAX_DEFER), FRESH
        try:
            address = http or Nsqd.of(node, self._options).address
            answer = Nsqd(address, timeout=PATIENCE, options=self._options).config("max_req_timeout")
            if type(answer) is int and answer >= 0:
                seconds = answer / 1e9
        except FrameworkError as error:
            log.debug("nsqd %s does not say how long a delay it takes, %g s is assumed: %s", node, seconds, error)
            fresh = BLIND
        self._fresh_until[node] = monotonic() + fresh
        self.learn(node, seconds)
