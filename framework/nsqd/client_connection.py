"""The connection under a client: its two streams, heartbeats, upgrades to TLS and compression, and its end. No commands."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable

import gevent
from gevent.socket import SHUT_RDWR, socket

from framework.alarm import Alarm
from framework.nsqd.daemon import HANDSHAKE_SECONDS
from framework.nsqd.streams import EndOfStream, Incoming, Outgoing
from framework.nsqd.underway import Memory
from framework.transports.nsq.stream import Codec, Socket, Stream, Tls
from framework.transports.nsq.wire import FRAME_ERROR, FRAME_RESPONSE, HEARTBEAT, encode_frame

_HEARTBEAT = encode_frame(FRAME_RESPONSE, HEARTBEAT)
_LINGER_SECONDS = 1.0
_HANDSHAKE_BYTES = 16 << 10
_READ_OUT_TIMES, _READ_OUT_BYTES = 64, 64 << 10


class _Bare:
    """The socket without waiting, as a Stream wants it below. Its owner closes it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def recv(self, size: int, /) -> bytes:
        return os.read(self._fd, size)

    def send(self, data: memoryview | bytes, /) -> int:
        return os.write(self._fd, data)

    def fileno(self) -> int:
        return self._fd

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


class ClientConnection:
    """One client's connection. Only ``read``-like methods of ``incoming``, ``secure``, ``compress`` and ``end`` block."""

    def __init__(
        self, sock: socket, address: str, log: Callable[[str, str], None], settle: Callable[[], None],
        drained: Callable[[], None], *, memory: Memory,
    ) -> None:  # fmt: skip
        """``settle`` is called before each wait for the client, ``drained`` when a full buffer to it has emptied."""
        self.address = address
        share = memory.share(lambda: self.close("its body does not come, and others wait for memory"))
        self.incoming = Incoming(sock, settle, share)
        self.outgoing = Outgoing(sock, drained, lambda: self.close("it does not read"))
        self.tls: Tls | None = None
        self.armed = 0.0
        """Since when a command is waited for (monotonic seconds)."""
        self._sock = sock
        self._stream: Socket = _Bare(sock.fileno())
        self._log = log
        self._interval = 0.0
        self._beat = Alarm(self._send_heartbeat)
        self._silence = Alarm(self._check_silence)

    # --- sending -----------------------------------------------------------------------------------------------

    def respond(self, data: bytes) -> None:
        self.outgoing.write([encode_frame(FRAME_RESPONSE, data)])

    def fail(self, words: str) -> None:
        """An error frame."""
        self.outgoing.write([encode_frame(FRAME_ERROR, words.encode("utf-8", "surrogateescape"))])

    # --- heartbeats ----------------------------------------------------------------------------------------------

    def await_hello(self, seconds: float) -> None:
        """Drop a client that has not come to ``start_heartbeat`` within ``seconds``. nsqd waits for ever."""
        self._silence.set(time.monotonic() + seconds)

    def start_heartbeat(self, interval: float) -> None:
        """One every ``interval`` seconds, 0: none; a client that is silent or does not read for too long is dropped."""
        self._beat.cancel()
        self._silence.cancel()
        self._interval = interval
        self.outgoing.patience = interval or None
        if interval:
            now = time.monotonic()
            self._beat.set(now + interval)
            self._silence.set(now + 2 * interval)

    def _send_heartbeat(self) -> None:
        self.outgoing.write([_HEARTBEAT])
        self._beat.set(time.monotonic() + self._interval)

    def _check_silence(self) -> None:
        """nsqd's read deadline: two intervals from where it began to wait for a command, its body included."""
        deadline = self.armed + 2 * self._interval
        if time.monotonic() >= deadline:
            self.close("it is silent")
        else:
            self._silence.set(deadline)

    # --- upgrades ------------------------------------------------------------------------------------------------

    def secure(self, context: ssl.SSLContext) -> None:
        """Have the client shake hands. Raises OSError (ssl.SSLError is one), EndOfStream."""
        self._pause()
        tls = Tls(context, None, server_side=True)
        with gevent.Timeout(HANDSHAKE_SECONDS, TimeoutError("the TLS handshake took too long")):
            # What came too early is no command: it was sent in the clear, where anybody could have put it.
            data, done = self.incoming.rest(), False
            while not done:
                data = data or self._sock.recv(_HANDSHAKE_BYTES)
                if not data:
                    raise EndOfStream
                done, data = self._shake(tls, data), b""
        self.tls = tls
        self._resume(tls)

    def _shake(self, tls: Tls, data: bytes) -> bool:
        try:
            done, reply = tls.shake(data)
        except ssl.SSLError:
            self._sock.sendall(tls.farewell())  # the alert that says why
            raise
        if reply:
            self._sock.sendall(reply)
        return done

    def compress(self, codec: Codec) -> None:
        """Raises EndOfStream when the client does not read."""
        self._pause()
        if self.incoming.rest():
            raise EndOfStream("it did not wait for the answer")
        self._resume(codec)

    def _pause(self) -> None:
        """Have all sent that was said so far, and nothing more: a heartbeat must not come between two layers."""
        self.outgoing.linger(HANDSHAKE_SECONDS)
        if self.outgoing.size:
            raise EndOfStream
        self.outgoing.between_layers = True

    def _resume(self, codec: Codec) -> None:
        self._stream = Stream(self._stream, codec)
        self.incoming.through(self._stream)
        self.outgoing.through(self._stream)
        self.outgoing.between_layers = False
        self.outgoing.flush()

    # --- the end -------------------------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        """End the connection from elsewhere on the hub; does not block."""
        self._log("INFO", f"TCP: closing client({self.address}): {reason}")
        try:
            self._sock.shutdown(SHUT_RDWR)
        except OSError:
            pass
        self.outgoing.close()

    def end(self) -> None:
        """Send what there is to send, and close."""
        self._beat.cancel()
        self._silence.cancel()
        self.outgoing.between_layers = False
        self.outgoing.linger(_LINGER_SECONDS)
        self.outgoing.close()
        self.incoming.end()
        self._stream.close()
        self._stream, self.tls = _Bare(-1), None  # layers are large, and a client that has gone is in a circle of references
        self._read_out()
        self._sock.close()

    def _read_out(self) -> None:
        """Take what has arrived: closing with unread bytes would be a reset, which can overtake our last frame."""
        self._sock.setblocking(False)
        try:
            for _ in range(_READ_OUT_TIMES):
                if not self._sock.recv(_READ_OUT_BYTES):
                    return
        except OSError:
            pass
