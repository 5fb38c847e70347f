"""The sessions of a transport: one for each server and hub, dialled when it is needed, closed when it is used no more."""

from __future__ import annotations

import os
import secrets as random
from collections.abc import Iterator
from contextlib import contextmanager

from gevent import monkey
from gevent.lock import Semaphore

from framework.transports.rocketmq.dial import CONNECT_TIMEOUT, dial
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.urls import Options, Secrets

_get_ident = monkey.get_original("_thread", "get_ident")


class Sessions:
    """``with sessions.use(server) as session``. A hub has its own; those of other hubs are left alone."""

    def __init__(self, options: Options, secrets: Secrets) -> None:
        self._options = options
        self._secrets = secrets
        self._client = random.token_hex(4)
        self._open: dict[tuple[str, int], Session] = {}
        self._users: dict[Session, int] = {}
        self._dialling: dict[tuple[str, int], Semaphore] = {}

    @contextmanager
    def use(self, server: str) -> Iterator[Session]:
        """That of this hub; blocks while it is dialled. Raises BrokerUnreachable, TlsFailed."""
        session = self.take(server)
        try:
            yield session
        finally:
            self.give_back(session)

    def take(self, server: str) -> Session:
        """As ``use``, until ``give_back``."""
        key = (server, _get_ident())
        with self._dialling.setdefault(key, Semaphore()):
            session = self._open.get(key)
            if session is None or session.error is not None or session.leaving:
                session = self._open[key] = self.dialled(server)
            self._users[session] = self._users.get(session, 0) + 1
            return session

    def dialled(self, server: str, timeout: float = CONNECT_TIMEOUT) -> Session:
        """One of its own, which the caller closes."""
        sock = dial(server, self._secrets if self._options.tls else None, timeout)
        return Session(server, sock, self._options, self._secrets, self._name())

    def _name(self) -> str:
        """As this hub is known to all brokers: no other of any machine has it."""
        return f"workers@{os.getpid()}#{_get_ident()}-{self._client}"

    def give_back(self, session: Session) -> None:
        """The last one closes it."""
        left = self._users.pop(session, 1) - 1
        if left:
            self._users[session] = left
            return
        for key in [key for key, one in self._open.items() if one is session]:
            del self._open[key]
        session.close()

    def close(self) -> None:
        """Those of this hub."""
        for (_, thread), session in list(self._open.items()):
            if thread == _get_ident():
                session.close()
