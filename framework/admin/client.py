"""Asks the admin endpoints of workers, as `workers ctl` and `workers top` do. It shows nothing."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlencode

from framework.admin.requests import WORKER
from framework.errors import BrokerUnreachable, WrongUse
from framework.transports.addresses import split_address

TIMEOUT = 5.0
"""Seconds that an answer may take, unless something is done that takes longer."""


class Worker:
    """The worker whose admin endpoint is at ``address``: host:port, or the path of a Unix socket."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self.address = address
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, **query: str) -> Any:
        """The JSON at ``path``. Raises WrongUse for what is refused, BrokerUnreachable when nobody answers."""
        return self._ask("GET", f"{path}?{urlencode(query)}" if query else path, None, TIMEOUT)

    def post(self, path: str, command: Any, *, timeout: float = TIMEOUT) -> Any:
        """As ``get``."""
        return self._ask("POST", path, json.dumps(command), timeout)

    def _ask(self, method: str, path: str, body: str | None, timeout: float) -> Any:
        connection = _Connection(self.address, timeout)
        headers = {**self._headers, **({"Content-Type": "application/json"} if body else {})}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            if WORKER not in answer.headers:  # before it is read: it may have no end
                words = f"what answers at {self.address} is no worker (HTTP status {answer.status}): is it another port?"
                raise BrokerUnreachable(words)
            found = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            words = getattr(error, "strerror", None) or str(error)[:100] or type(error).__name__
            raise BrokerUnreachable(f"no worker answers at {self.address} ({words}): was it started with --admin?") from None
        finally:
            connection.close()
        if answer.status < http.client.BAD_REQUEST:
            return found
        raise WrongUse(f"{self.address}: {found['error']}{_HINTS.get(answer.status, '')}")


_HINTS = {401: "; set it in $WORKERS_ADMIN_TOKEN"}


class _Connection(http.client.HTTPConnection):
    def __init__(self, address: str, timeout: float) -> None:
        self._path = address if "/" in address else ""
        host, port = ("localhost", 80) if self._path else split_address(address)
        super().__init__(host, port, timeout=timeout)

    def connect(self) -> None:
        if not self._path:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
