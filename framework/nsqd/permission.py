"""What one client may do where AUTH is on: asked of the auth servers, and again when their answer is too old."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from framework.nsqd import arguments, auth, golang
from framework.nsqd.bodies import Refused
from framework.nsqd.options import Options
from framework.transports.nsq.stream import Tls


class Permission:
    """One client's. Every method raises Refused."""

    def __init__(self, options: Options, address: str, log: Callable[[str, str], None]) -> None:
        self.state: auth.State | None = None
        """The last answer; of one that allows nothing the connection ends."""
        self._options = options
        self._address = address
        self._log = log
        self._secret = ""

    def ask(self, secret: str, tls: Tls | None) -> bytes:
        """AUTH: the answer to the client; blocks the greenlet."""
        if self.state is not None:
            raise arguments.invalid("AUTH already set")
        if not self._options.auth_http_addresses:
            raise Refused("E_AUTH_DISABLED", "AUTH disabled")
        self._secret = secret
        state = self._ask(tls)
        if not state.authorizations:
            raise Refused("E_UNAUTHORIZED", "AUTH no authorizations found")
        said = {"identity": state.identity, "identity_url": state.identity_url, "permission_count": len(state.authorizations)}
        return msgspec.json.encode(said)

    def check(self, command: str, topic: str, channel: str, tls: Tls | None) -> None:
        """Nothing where AUTH is off; else the server is asked again when its answer is too old."""
        if not self._options.auth_http_addresses:
            return
        state = self.state
        if state is None:
            raise Refused("E_AUTH_FIRST", f"AUTH required before {command}")
        if state.expires < time.monotonic():
            state = self._ask(tls)
        if not state.allows(topic, channel):
            where = f"{golang.quote(topic.encode())} {golang.quote(channel.encode())}"
            raise Refused("E_UNAUTHORIZED", f"AUTH failed for {command} on {where}")

    def _ask(self, tls: Tls | None) -> auth.State:
        try:
            self.state = auth.ask(
                self._options.auth_http_addresses, self._options.http_client_request_timeout,
                common_name=tls.peer_name if tls else "", remote_ip=self._address.rpartition(":")[0].strip("[]"),
                secret=self._secret, tls="true" if tls else "false",
            )  # fmt: skip
        except auth.AuthFailed as error:
            self._log("WARNING", f"PROTOCOL(V2): [{self._address}] AUTH failed {error}")
            raise Refused("E_AUTH_FAILED", "AUTH failed") from error
        return self.state
