"""Workers on a route, in greenlets of the test's thread, and the books of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent

from framework.engine.ledger import Ledger
from framework.engine.supervisor import Supervisor
from framework.handler import make_spec
from framework.message import Message

from .conftest import until


class Worker:
    """One handler on ``transport``; connected when it is made."""

    def __init__(self, transport: Any, handle: Callable[[Message], None], *, drain: float = 25.0, **options: Any) -> None:
        spec = make_spec(handle, "orders", "billing", {"concurrency": 4, **options})
        self.transport = transport
        self.supervisor = Supervisor([spec], [transport], publish=print, drain=drain)
        self.greenlet = gevent.spawn(self.supervisor.run)
        until(lambda: self.supervisor.ready or self.greenlet.dead)

    @property
    def ledger(self) -> Ledger:
        (ledger,) = self.supervisor.ledgers.values()
        return ledger

    def stop(self, *, now: bool = False) -> Ledger:
        self.supervisor.stop(now)
        self.greenlet.get(timeout=30)
        self.transport.close()
        assert self.ledger.balance(0) == 0, self.ledger
        return self.ledger
