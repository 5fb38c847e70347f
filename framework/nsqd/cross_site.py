"""Which web pages may use the HTTP API: none of other sites, and none that had a name of their own point to loopback."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import Any

from framework.nsqd.httpd import LOOPBACK
from framework.nsqd.status import Status

ANY = "*"
_READING = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing; a page of another site cannot see their answers."""


class CrossSite:
    """Whose requests are served."""

    def __init__(self, names: Iterable[str], broadcast_address: str) -> None:
        """``names``: hosts that clients may call this one, and whose pages may use it; ``*``: all."""
        self._names = {name.lower() for name in names}
        self._own = {"localhost", socket.gethostname().lower(), broadcast_address.lower()}

    def check(self, environ: dict[str, Any]) -> None:
        """Raises Status. Programs that are no browsers pass: they name an address, or what they were told to connect to."""
        if ANY in self._names:
            return
        host = environ.get("HTTP_HOST", "")
        if environ.get(LOOPBACK) and not self._is_here(_name(host)):
            raise Status(403, "FORBIDDEN_HOST")
        if environ["REQUEST_METHOD"] not in _READING and self._is_foreign(environ, host):
            raise Status(403, "FORBIDDEN_ORIGIN")

    def _is_here(self, name: str) -> bool:
        """No other site can make a browser name an address, or a name under localhost, and mean another place."""
        return name in self._own or name in self._names or not name or name.endswith(".localhost") or _is_address(name)

    def _is_foreign(self, environ: dict[str, Any], host: str) -> bool:
        """As Go's http.CrossOriginProtection has it: browsers say where a request comes from, other programs do not."""
        origin = environ.get("HTTP_ORIGIN", "")
        where = origin.partition("://")[2].lower()
        if where and _name(where) in self._names:
            return False
        if site := environ.get("HTTP_SEC_FETCH_SITE"):
            return site not in ("same-origin", "none")
        return bool(origin) and where != host.lower()


def _name(host: str) -> str:
    """Without the port."""
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.partition(":")[0].lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
