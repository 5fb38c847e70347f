"""The state machine of one nsqd that registers: the V1 protocol of nsqlookupd. Source: nsqlookupd v1.3.0 lookup_protocol_v1.go.

A response is its size and its data, without a type; every error ends the connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from struct import Struct
from typing import Any

import msgspec
from gevent.socket import SHUT_RDWR, socket

from framework.alarm import Alarm
from framework.names import EPHEMERAL, is_valid
from framework.nsqd import golang
from framework.nsqd.daemon import Log
from framework.nsqd.streams import EndOfStream, Incoming
from framework.nsqd.underway import Memory
from framework.nsqlookupd.registry import ANY, CHANNEL, NODES, TOPIC, Node, Peer, Registration, Registry

MAGIC = b"  V1"
OK = b"OK"
_INT32 = Struct(">i")
_MAX_BODY = 5 << 20
"""nsqlookupd has no limit of its own, and ends with a panic at a negative size."""
_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""What Go's TrimSpace takes off."""


class Refused(Exception):
    """An error for the nsqd, in nsqlookupd's words."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(f"{code} {words}")


class Connection:
    """One nsqd's connection. ``run`` blocks its greenlet until the nsqd leaves or must."""

    def __init__(
        self, registry: Registry, sock: socket, address: str, about: Callable[[], dict[str, Any]], log: Log,
        *, memory: Memory, patience: float,
    ) -> None:  # fmt: skip
        """``about`` is what an nsqd is told of this server; ``patience``: seconds that it may take for a command."""
        self._registry = registry
        self._sock = sock
        self._address = address
        self._about = about
        self._log = log
        self._patience = patience
        self._incoming = Incoming(sock, lambda: None, memory.share(self._give_up))
        self._alarm = Alarm(self._give_up)
        self._node: Node | None = None
        self._commands: dict[str, Callable[[list[str]], bytes]] = {
            "PING": self._ping,
            "IDENTIFY": self._identify,
            "REGISTER": self._register,
            "UNREGISTER": self._unregister,
        }

    def run(self) -> None:
        try:
            self._wait()
            if self._incoming.take(len(MAGIC)) != MAGIC:
                self._send(b"E_BAD_PROTOCOL")
                return
            while True:
                self._wait()
                self._next()
        except (EndOfStream, OSError):
            pass
        except Refused as refused:
            self._refuse(refused)
        finally:
            self._alarm.cancel()
            self._incoming.end()
            self._leave()

    def _wait(self) -> None:
        """Have it long enough: nsqlookupd itself waits for ever, for a command and for its answer to be read."""
        self._alarm.cancel()
        self._alarm.set(time.monotonic() + self._patience)

    def _give_up(self) -> None:
        try:
            self._sock.shutdown(SHUT_RDWR)
        except OSError:
            pass  # it has gone

    def _refuse(self, refused: Refused) -> None:
        self._log("ERROR", f"[{self._address}] - {_shown(str(refused))}")
        try:
            self._send(str(refused).encode("utf-8", "surrogateescape"))
        except OSError:
            pass  # it has gone without waiting for that

    def _send(self, data: bytes) -> None:
        self._sock.sendall(_INT32.pack(len(data)) + data)

    def _next(self) -> None:
        words = self._incoming.line().decode("utf-8", "surrogateescape").strip(_SPACE).split(" ")
        command = self._commands.get(words[0])
        if command is None:
            raise Refused("E_INVALID", f"invalid command {words[0]}")
        self._send(command(words[1:]))

    def _leave(self) -> None:
        if self._node is not None:
            for registration in self._registry.leave_all(self._node):
                self._note("UNREGISTER", registration)

    def _note(self, what: str, registration: Registration, level: str = "INFO") -> None:
        category, key, subkey = registration
        self._log(level, f"DB: client({self._address}) {what} category:{category} key:{key} subkey:{subkey}")

    # --- commands ------------------------------------------------------------------------------------------------

    def _ping(self, words: list[str]) -> bytes:
        if self._node is not None:
            now = time.time()
            self._log("DEBUG", f"CLIENT({self._address}): pinged (last ping {now - self._node.seen:.3f}s)")
            self._node.seen = now
        return OK

    def _identify(self, words: list[str]) -> bytes:
        if self._node is not None:
            raise Refused("E_INVALID", "cannot IDENTIFY again")
        peer = self._peer()
        peer.remote_address = self._address
        if not (peer.broadcast_address and peer.tcp_port and peer.http_port and peer.version):
            raise Refused("E_BAD_BODY", "IDENTIFY missing fields")
        self._log(
            "INFO",
            f"CLIENT({self._address}): IDENTIFY Address:{peer.broadcast_address} TCP:{peer.tcp_port} "
            f"HTTP:{peer.http_port} Version:{peer.version}",
        )
        self._node = Node(peer, time.time())
        self._enter(NODES)
        return msgspec.json.encode(self._about())

    def _peer(self) -> Peer:
        try:
            size = self._incoming.int32()
        except EndOfStream:
            raise Refused("E_BAD_BODY", "IDENTIFY failed to read body size") from None
        try:
            if not 0 <= size <= _MAX_BODY:
                raise EndOfStream(f"a body of {size} bytes")
            body = self._incoming.take(size)
        except EndOfStream:
            raise Refused("E_BAD_BODY", "IDENTIFY failed to read body") from None
        try:
            return golang.unmarshal(body, Peer())
        except (ValueError, RecursionError):
            raise Refused("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None

    def _register(self, words: list[str]) -> bytes:
        topic, channel = self._names("REGISTER", words)
        if channel:
            self._enter(Registration(CHANNEL, topic, channel))
        self._enter(Registration(TOPIC, topic))
        return OK

    def _enter(self, registration: Registration) -> None:
        assert self._node is not None
        if self._registry.enter(registration, self._node):
            self._note("REGISTER", registration)

    def _unregister(self, words: list[str]) -> bytes:
        topic, channel = self._names("UNREGISTER", words)
        if channel:
            self._drop(Registration(CHANNEL, topic, channel), channel)
            return OK
        for registration in self._registry.find(CHANNEL, topic, ANY):
            self._forget(registration, "WARNING")  # nsqd says so of each channel before
        self._drop(Registration(TOPIC, topic), topic)
        return OK

    def _drop(self, registration: Registration, name: str) -> None:
        """An #ephemeral one goes with the last nsqd that has it; other names stay."""
        self._forget(registration)
        if name.endswith(EPHEMERAL) and self._registry.empty(registration):
            self._registry.remove(registration)

    def _forget(self, registration: Registration, level: str = "INFO") -> None:
        assert self._node is not None
        if self._registry.leave(registration, self._node):
            self._note("UNREGISTER", registration, level)

    def _names(self, command: str, words: list[str]) -> tuple[str, str]:
        if self._node is None:
            raise Refused("E_INVALID", "client must IDENTIFY")
        if not words:
            raise Refused("E_INVALID", f"{command} insufficient number of params")
        topic, channel = words[0], words[1] if len(words) > 1 else ""
        if not is_valid(topic):
            raise Refused("E_BAD_TOPIC", f"{command} topic name '{topic}' is not valid")
        if channel and not is_valid(channel):
            raise Refused("E_BAD_CHANNEL", f"{command} channel name '{channel}' is not valid")
        return topic, channel


def _shown(words: str) -> str:
    return words.encode("utf-8", "backslashreplace").decode()
