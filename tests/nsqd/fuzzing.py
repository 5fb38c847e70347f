"""Bytes that a client might send, wrong in every way that a seed can think of: V2 and V1 sessions, HTTP requests."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(32)) + bytes.fromhex("20") + bytes(range(32)) + b"\x00" * 130
_NAMES = ("t", "u", "v#ephemeral", "w", "x" * 64)
_CHANNELS = ("c", "d", "e#ephemeral")
_WRONG_NAMES = ("", "x" * 65, "#ephemeral", "a b", "é", "a\x00b", "..", '"', "%s", "../../etc")
_SIZES = (0, 1, 2, 3, 4, 5, -1, -(1 << 31), (1 << 31) - 1, 1 << 20, (1 << 20) + 1, 5 << 20, (5 << 20) + 1, 0x7FFF, 0xFFFF)
_NUMBERS = ("0", "1", "-1", "1.5", "", "2500", "2501", "x", "1e3", "18446744073709551615", "9" * 40, "9" * 5000, "٣")
_WISHES = (
    "client_id", "hostname", "user_agent", "heartbeat_interval", "output_buffer_size", "output_buffer_timeout",
    "feature_negotiation", "tls_v1", "deflate", "deflate_level", "snappy", "sample_rate", "msg_timeout",
)  # fmt: skip
_VALUES = (0, 1, -1, 64, 99, 100, 1000, 60000, 65536, 900000, 1 << 31, 1 << 63, True, False, None, "", "x" * 300, 1.5, [], {})
_PATHS = (
    "/ping", "/info", "/stats", "/stats?format=json", "/pub?topic=t", "/pub?topic=u&defer=100", "/mpub?topic=t",
    "/mpub?topic=t&binary=true", "/topic/create?topic=t", "/topic/delete?topic=u", "/topic/empty?topic=t",
    "/topic/pause?topic=w", "/topic/unpause?topic=w", "/channel/create?topic=t&channel=c", "/channel/delete?topic=t&channel=d",
    "/channel/empty?topic=t&channel=c", "/channel/pause?topic=t&channel=c", "/channel/unpause?topic=t&channel=c",
    "/config/log_level", "/config/nsqlookupd_tcp_addresses", "/debug", "/lookup?topic=t", "/topics", "/channels?topic=t",
    "/nodes", "/topic/tombstone?topic=t&node=a:1", "/", "//", "/PING/", "*", "http://x/ping",
)  # fmt: skip


class Fuzz:
    """One seed's inputs: the same again for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pieces(self, data: bytes) -> list[bytes]:
        """``data`` cut at random, as a network may."""
        cuts = sorted(self.random.randrange(len(data) + 1) for _ in range(self.random.choice((0, 0, 0, 1, 2, 5))))
        return [data[low:high] for low, high in zip([0, *cuts], [*cuts, len(data)], strict=True) if high > low]

    # --- V2 ------------------------------------------------------------------------------------------------------

    def session(self) -> bytes:
        """What a client of nsqd's TCP port sends."""
        kind = self.random.random()
        if kind < 0.04:
            return self._noise()
        if kind < 0.06:
            return self.random.choice((TLS_HELLO, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"  V1", b"  v2PUB t\n", b"\n" * 40))
        hello = b"  V2" if self.random.random() < 0.98 else self._noise()[:4]
        data = hello + b"".join(self.command() for _ in range(self.random.randrange(1, 7)))
        return self._mutated(data) if self.random.random() < 0.7 else data

    def upgrade(self) -> tuple[bytes, bytes]:
        """An IDENTIFY that asks for a layer, and what follows when it was granted: garbage, or what stops being it midway."""
        layer = self.random.choice(("tls_v1", "snappy", "deflate"))
        ask = b"  V2IDENTIFY\n" + _sized(json.dumps({"feature_negotiation": True, layer: True}).encode())
        rest = self.random.choice((self._noise, self._deflated, self._snapped, lambda: TLS_HELLO))()
        return ask, self._mutated(rest) if self.random.random() < 0.5 else rest

    def _deflated(self) -> bytes:
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        plain = self.command()
        plain *= self.random.choice((1, 3, 1 + 2_000_000 // len(plain)))
        return packer.compress(plain) + packer.flush(zlib.Z_SYNC_FLUSH)

    def _snapped(self) -> bytes:
        return b"\xff\x06\x00\x00sNaPpY" + self.random.choice((b"\x00", b"\x01", b"\x80", b"\xfe", b"\x02")) + self._noise()

    def command(self) -> bytes:
        """One command, mostly right."""
        pick = self.random.choice
        return pick(
            (self._pub, self._pub, self._mpub, self._dpub, self._sub, self._about, self._identify, self._auth, self._line)
        )()

    def _topic(self) -> str:
        return self.random.choice(_NAMES if self.random.random() < 0.9 else _WRONG_NAMES)

    def _number(self) -> str:
        return self.random.choice(_NUMBERS)

    def _body(self) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 5, 5, 5, 40, 40, 300, 20_000)))

    def _pub(self) -> bytes:
        return f"PUB {self._topic()}\n".encode() + self._sized(self._body())

    def _dpub(self) -> bytes:
        return f"DPUB {self._topic()} {self._number()}\n".encode() + self._sized(self._body())

    def _mpub(self) -> bytes:
        bodies = [self._sized(self._body()) for _ in range(self.random.randrange(5))]
        return f"MPUB {self._topic()}\n".encode() + self._sized(self._size(len(bodies)) + b"".join(bodies))

    def _sub(self) -> bytes:
        rdy = b"RDY %b\n" % self._number().encode() if self.random.random() < 0.7 else b""
        return f"SUB {self._topic()} {self.random.choice(_CHANNELS)}\n".encode() + rdy

    def _about(self) -> bytes:
        """A command about a message."""
        which = self.random.choice((b"FIN %b\n", b"REQ %b 10\n", b"REQ %b x\n", b"TOUCH %b\n", b"FIN %b\nFIN 1\n"))
        return which % self.random.choice((b"0123456789abcdef", b"\xff" * 16, b"\r" * 16, b"short", b"", b"x" * 15 + b" "))

    def _identify(self) -> bytes:
        wishes = {name: self.random.choice(_VALUES) for name in self.random.sample(_WISHES, self.random.randrange(5))}
        text = json.dumps(wishes)
        if self.random.random() < 0.1:
            text = self.random.choice(
                ("[" * 50_000, '{"a":' * 30_000, "1" * 5000, '{"msg_timeout":1e999}', "null", '"', "\ud800")
            )
        return b"IDENTIFY\n" + self._sized(text.encode(errors="surrogatepass"))

    def _auth(self) -> bytes:
        return b"AUTH\n" + self._sized(self._body())

    def _line(self) -> bytes:
        words = ("NOP", "CLS", "RDY 1", "RDY", "SUB t", "PUB", "REQ", "FIN", "", "nop", "X" * 17_000, "PUB  t", "NOP\r", "CLS x")
        return self.random.choice(words).encode() + b"\n"

    def _sized(self, body: bytes) -> bytes:
        return self._size(len(body)) + body

    def _size(self, right: int) -> bytes:
        return struct.pack(">i", right if self.random.random() < 0.93 else self.random.choice(_SIZES))

    # --- V1 ------------------------------------------------------------------------------------------------------

    def registration(self) -> bytes:
        """What a client of nsqlookupd's TCP port sends."""
        if self.random.random() < 0.1:
            return self._noise()
        data = b"  V1" + b"".join(self._registers() for _ in range(self.random.randrange(1, 6)))
        return self._mutated(data) if self.random.random() < 0.6 else data

    def _registers(self) -> bytes:
        if self.random.random() < 0.4:
            peer = {"broadcast_address": "h", "hostname": "h", "tcp_port": 1, "http_port": 2, "version": "1"}
            peer[self.random.choice(tuple(peer))] = self.random.choice(_VALUES)  # type: ignore[assignment]
            return b"IDENTIFY\n" + self._sized(json.dumps(peer).encode())
        what = self.random.choice(("REGISTER", "UNREGISTER", "PING", "X" * 17_000, ""))
        return f"{what} {self._topic()} {self.random.choice((*_CHANNELS, ''))}\n".encode()

    # --- HTTP ----------------------------------------------------------------------------------------------------

    def request(self) -> bytes:
        """What a client of an HTTP port sends."""
        if self.random.random() < 0.05:
            return self.random.choice((self._noise(), TLS_HELLO, b"  V2PUB t\n\x00\x00\x00\x01x"))
        pick = self.random.choice
        body = self._body()
        lengths = (f"Content-Length: {pick((len(body), len(body), 0, -1, 'x', 10**20, '1_0', '+1'))}\r\n", "")
        heads = (
            "Connection: close\r\n",
            "Connection: upgrade\r\n",
            "Expect: 100-continue\r\n",
            "X: " + "y" * 9000 + "\r\n",
            "a\r\n",
            "",
        )
        chunked = self.random.random() < 0.1
        head = (
            f"{pick(('GET', 'POST', 'PUT', 'HEAD', 'OPTIONS', 'POST', 'X', ''))} {pick(_PATHS)} "
            f"{pick(('HTTP/1.1', 'HTTP/1.1', 'HTTP/1.0', 'HTTP/9', ''))}\r\n"
            f"{'Transfer-Encoding: chunked' + chr(13) + chr(10) if chunked else pick(lengths)}{pick(heads)}\r\n"
        )
        data = head.encode() + (b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body)
        return self._mutated(data) if self.random.random() < 0.6 else data

    # --- what goes wrong -----------------------------------------------------------------------------------------

    def _noise(self) -> bytes:
        return self.random.randbytes(self.random.choice((1, 3, 4, 20, 200, 40_000)))

    def _mutated(self, data: bytes) -> bytes:
        for _ in range(self.random.choice((1, 1, 2, 4))):
            how: Callable[[bytes, int], bytes] = self.random.choice(
                (self._flip, self._drop, self._repeat, self._insert, self._resize)
            )
            data = how(data, self.random.randrange(len(data) + 1))
        return data

    def _flip(self, data: bytes, at: int) -> bytes:
        return data[:at] + bytes(byte ^ 1 << self.random.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :]

    def _drop(self, data: bytes, at: int) -> bytes:
        return data[:at] + (data[at + self.random.randrange(20) :] if self.random.random() < 0.8 else b"")

    def _repeat(self, data: bytes, at: int) -> bytes:
        return data[:at] + data[at : at + 60] * self.random.choice((2, 3, 50)) + data[at:]

    def _insert(self, data: bytes, at: int) -> bytes:
        return data[:at] + self.random.randbytes(self.random.randrange(1, 9)) + data[at:]

    def _resize(self, data: bytes, at: int) -> bytes:
        return data[:at] + struct.pack(">i", self.random.choice(_SIZES)) + data[at + 4 :]


def _sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body
