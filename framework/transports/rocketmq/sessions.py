"""The sessions of a transport, one for each server and hub."""

from __future__ import annotations

import os
import secrets as random

from gevent import monkey

from framework.transports.rocketmq.dial import CONNECT_TIMEOUT, dial
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.urls import Options, Secrets
from framework.transports.shared_sessions import SharedSessions

_get_ident = monkey.get_original("_thread", "get_ident")


class Sessions(SharedSessions[Session]):
    """By server. To dial raises BrokerUnreachable, TlsFailed."""

    def __init__(self, options: Options, secrets: Secrets) -> None:
        self._options = options
        self._secrets = secrets
        self._client = random.token_hex(4)
        super().__init__(lambda server, _: self.dialled(server))

    def dialled(self, server: str, timeout: float = CONNECT_TIMEOUT) -> Session:
        """One of its own, which the caller closes."""
        sock = dial(server, self._secrets if self._options.tls else None, timeout)
        return Session(server, sock, self._options, self._secrets, self._name())

    def _name(self) -> str:
        """As this hub is known to all brokers: no other of any machine has it."""
        return f"workers@{os.getpid()}#{_get_ident()}-{self._client}"
