"""Who may ask the admin endpoint for what: by Host, Origin and token. It answers nothing itself."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass

from framework.admin.requests import Refused, Request
from framework.errors import BadSetting

OPEN = ("/livez", "/readyz")
"""Told to everybody, without a reason: what asks has no secrets to give, as a probe of Kubernetes."""
_LOCAL = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")


@dataclass(frozen=True, slots=True)
class Access:
    """``local``: it listens on loopback, where a page of a browser must not reach it by a name of its own. ``token``: what
    clients have to say, where there is one. ``read_only``: nothing is changed."""

    local: bool
    token: str = ""
    read_only: bool = False

    def check(self, request: Request, *, asset: bool = False) -> None:
        """Raises Refused. ``asset``: it is a file of the page, which says nothing of the worker."""
        host = request.headers.get("host", "")
        if self.local and host and not _LOCAL.fullmatch(host):
            raise Refused(403, "this Host is not served here: use the address that --admin names")
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refused(403, f"a page of {origin[:100]} may not ask here")
        site = request.headers.get("sec-fetch-site", "none")
        if site not in ("same-origin", "none") and not (asset and _follows_a_link(request)):
            raise Refused(403, "a page of another origin may not ask here")
        if not (asset or request.path in OPEN or self.knows(request)):
            raise Refused(401, "say the token, as `Authorization: Bearer TOKEN`")

    def knows(self, request: Request) -> bool:
        """Whether it has the token, where one is needed."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        known = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.encode())
        return not self.token or known

    def check_change(self, request: Request) -> None:
        """Raises Refused for what may not change anything."""
        if self.read_only:
            raise Refused(403, "this endpoint is read-only (--admin-read-only)")
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/json":  # which a page of another site cannot send without being asked about
            raise Refused(415, "send JSON, with `Content-Type: application/json`")


def _follows_a_link(request: Request) -> bool:
    """Of a wiki, or an alert: the whole tab shows the page then, and who linked to it gets nothing of it."""
    return request.headers.get("sec-fetch-mode") == "navigate" and request.headers.get("sec-fetch-dest") == "document"


def access_for(address: str, *, loopback: bool, token: str | None, read_only: bool) -> Access:
    """Raises BadSetting where anybody could reach the endpoint, and no token is set."""
    if not (loopback or token):
        raise BadSetting(
            f"--admin {address} can be reached from other machines: set a token that its clients say, in "
            "$WORKERS_ADMIN_TOKEN, or listen on 127.0.0.1 or at a path"
        )
    return Access(loopback, token or "", read_only)
