"""Tells every nsqlookupd which topics and channels are here, and asks them for the channels of a new topic.

Each nsqlookupd has a greenlet of its own: one that is away or hangs holds up neither this nsqd nor the others.
Source: nsqd v1.3.0 lookup.go, lookup_peer.go.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import Any

import gevent
from gevent import Greenlet, get_hub, socket
from gevent.event import Event

from framework.errors import FrameworkError
from framework.names import EPHEMERAL
from framework.nsqd.events import Events
from framework.nsqd.journal import NotStored
from framework.nsqd.options import VERSION
from framework.nsqd.topic import Gone, Made, Topic
from framework.transports.nsq.http import Lookupd
from framework.transports.nsq.urls import join_address, split_address

MAGIC = b"  V1"
_PING = b"PING\n"
_PING_SECONDS = 15.0
_CONNECT_SECONDS = 2.0
_REPLY_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 15.0
_MAX_REPLY = 5 << 20
_AT_ONCE = 500
"""Commands sent before their replies are read: 3 kB of replies, which the socket holds for us."""
_INT32 = Struct(">i")
_READ = 1


class Peer:
    """One nsqlookupd, connected to again and again until ``stop``."""

    def __init__(self, address: str, who: bytes, everything: Callable[[], list[bytes]], log: Callable[[str, str], None]) -> None:
        """``who`` is the IDENTIFY command, ``everything`` the registrations as of now."""
        self.address = address
        self.http_address: str | None = None
        """Where it can be asked; None while it is not connected."""
        self._who = who
        self._everything = everything
        self._log = log
        self._commands: list[bytes] = []
        self._wake = Event()
        self._pause = _FIRST_PAUSE
        self._silent = False
        self._greenlet = Greenlet.spawn(self._run)

    def tell(self, command: bytes) -> None:
        """Say it when it is connected; what it missed it is told as it comes back."""
        self._commands.append(command)
        self._wake.set()

    def stop(self) -> None:
        self._greenlet.kill(block=False)

    def _run(self) -> None:
        while True:
            try:
                self._serve()
            except (OSError, ValueError, KeyError, TypeError) as error:
                # Once: one that stays away for hours must not fill the log.
                self._log("DEBUG" if self._silent else "ERROR", f"LOOKUPD({self.address}): {str(error) or type(error).__name__}")
                self._silent = True
            self._commands.clear()
            gevent.sleep(self._pause * random.uniform(0.5, 1))
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)

    def _serve(self) -> None:
        """From connecting to the end of the connection. Raises OSError, ValueError, KeyError, TypeError."""
        with socket.create_connection(split_address(self.address), _CONNECT_SECONDS) as sock:
            try:
                sock.settimeout(_REPLY_SECONDS)
                sock.sendall(MAGIC)
                self._introduce(sock)
                while True:
                    self._wait(sock)
                    self._say(sock, self._take() or [_PING])
            finally:
                self.http_address = None

    def _introduce(self, sock: socket.socket) -> None:
        (reply,) = self._ask(sock, [self._who])
        said = json.loads(reply)
        self._commands = self._everything()
        self._wake.set()
        if said["broadcast_address"]:
            self.http_address = join_address(said["broadcast_address"], int(said["http_port"]))
        self._pause, self._silent = _FIRST_PAUSE, False
        self._log("INFO", f"LOOKUPD({self.address}): connected, {len(self._commands)} registrations to make")

    def _take(self) -> list[bytes]:
        commands, self._commands = self._commands, []
        return commands

    def _wait(self, sock: socket.socket) -> None:
        """Until there is something to say, or it is time for a ping. Raises ConnectionError at the end of the connection."""
        watcher = get_hub().loop.io(sock.fileno(), _READ)
        watcher.start(self._wake.set)
        try:
            self._wake.wait(_PING_SECONDS)
        finally:
            watcher.close()
        self._wake.clear()
        sock.settimeout(0)
        try:
            said = sock.recv(1)
        except BlockingIOError:
            sock.settimeout(_REPLY_SECONDS)
        else:
            raise ConnectionError("it speaks without being asked" if said else "it closed the connection")

    def _say(self, sock: socket.socket, commands: Sequence[bytes]) -> None:
        for at in range(0, len(commands), _AT_ONCE):
            some = commands[at : at + _AT_ONCE]
            for command, reply in zip(some, self._ask(sock, some), strict=True):
                if command != _PING:
                    self._log("INFO", f"LOOKUPD({self.address}): {command.decode().strip()}")
                if reply != b"OK":
                    raise ConnectionError(f"it answered {command!r} with {reply[:80]!r}")

    def _ask(self, sock: socket.socket, commands: Sequence[bytes]) -> list[bytes]:
        sock.sendall(b"".join(commands))
        return [self._reply(sock) for _ in commands]

    def _reply(self, sock: socket.socket) -> bytes:
        (size,) = _INT32.unpack(_exactly(sock, 4))
        if not 0 <= size <= _MAX_REPLY:
            raise ConnectionError(f"it is no nsqlookupd: it announced an answer of {size} bytes")
        return _exactly(sock, size)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionError("it closed the connection")
        data += more
    return data


class Lookups:
    """All nsqlookupds of one nsqd. It takes events, and changes no topic but new ones."""

    def __init__(
        self, topics: Mapping[str, Topic], events: Events, who: dict[str, Any],
        *, log: Callable[[str, str], None], timeout: float,
    ) -> None:  # fmt: skip
        """``who`` are the addresses that nsqlookupd hands to clients: broadcast_address, hostname, tcp_port, http_port.

        ``timeout``: seconds that one may take to answer what channels a topic has.
        """
        body = json.dumps(who | {"version": VERSION}).encode()
        self._who = b"IDENTIFY\n" + _INT32.pack(len(body)) + body
        self._topics = topics
        self._log = log
        self._timeout = timeout
        self._peers: dict[str, Peer] = {}
        events.on(Made, self._made)
        events.on(Gone, lambda event: self._announce("UNREGISTER", event.topic.name, event.channel))

    def use(self, addresses: Iterable[str]) -> None:
        """Register with these from now on, and with no others."""
        wanted = list(dict.fromkeys(addresses))
        for gone in self._peers.keys() - set(wanted):
            self._log("INFO", f"LOOKUP({gone}): removing peer")
            self._peers.pop(gone).stop()
        for address in wanted:
            if address not in self._peers:
                self._log("INFO", f"LOOKUP({address}): adding peer")
                self._peers[address] = Peer(address, self._who, self._everything, self._log)

    def _everything(self) -> list[bytes]:
        return [
            _command("REGISTER", topic.name, channel) for topic in self._topics.values() for channel in topic.channels or [""]
        ]

    def _announce(self, word: str, topic: str, channel: str) -> None:
        command = _command(word, topic, channel)
        for peer in self._peers.values():
            peer.tell(command)

    def _made(self, event: Made) -> None:
        self._announce("REGISTER", event.topic.name, event.channel)
        if not event.channel:
            self._ask_for_channels(event.topic)

    def _ask_for_channels(self, topic: Topic) -> None:
        """A new topic holds its messages until it has the channels that it has at other nsqds."""
        asked = [peer.http_address for peer in self._peers.values() if peer.http_address]
        if asked:
            topic.await_channels()
            gevent.spawn(self._channels, topic, asked)

    def _channels(self, topic: Topic, addresses: list[str]) -> None:
        asked = [gevent.spawn(self._ask, topic.name, address) for address in addresses]
        gevent.joinall(asked)
        if not topic.deleted:
            for name in sorted(set().union(*(one.value for one in asked if one.value))):
                if not name.endswith(EPHEMERAL):
                    topic.channel(name)
            try:
                topic.settle()
            except NotStored:
                pass  # they get what is published once they are declared
            topic.release()

    def _ask(self, topic: str, address: str) -> list[str]:
        began = time.monotonic()
        try:
            return Lookupd(address, timeout=self._timeout).lookup(topic).channels
        except FrameworkError as error:
            took = time.monotonic() - began
            self._log("WARNING", f"TOPIC({topic}): not asked for the channels it has elsewhere, after {took:.1f} s - {error}")
            return []

    def stop(self) -> None:
        self.use(())


def _command(word: str, topic: str, channel: str) -> bytes:
    return f"{word} {topic} {channel}".strip().encode() + b"\n"
