"""Reads what follows the line of a command: sizes and bodies, checked in the order of nsqd and refused in its words."""

from __future__ import annotations

from struct import Struct

from framework.nsqd.options import Options
from framework.nsqd.streams import EndOfStream, Incoming

_INT32 = Struct(">i")
_SPARE = 64 << 10
"""Bytes by which an MPUB may exceed the maximum: clients are known to count its size wrongly by a little."""

_TURN = 1000
"""Messages that are taken before others are let run: an MPUB may have a million."""


class Refused(Exception):
    """An error frame for the client; ``fatal`` ones end the connection."""

    def __init__(self, code: str, words: str, *, fatal: bool = True) -> None:
        super().__init__(f"{code} {words}")
        self.fatal = fatal


class Bodies:
    """Reads what belongs to a command from the client's stream. Every method raises Refused."""

    def __init__(self, incoming: Incoming, options: Options) -> None:
        self._incoming = incoming
        self._options = options

    def body(self, command: str) -> bytes:
        """The body of IDENTIFY or AUTH."""
        most = self._options.max_body_size
        size = self._int32("E_BAD_BODY", f"{command} failed to read body size")
        if size > most:
            raise Refused("E_BAD_BODY", f"{command} body too big {size} > {most}")
        if size <= 0:
            raise Refused("E_BAD_BODY", f"{command} invalid body size {size}")
        return self._take(size, "E_BAD_BODY", f"{command} failed to read body")

    def message(self, command: str) -> bytes:
        """One message of PUB or DPUB, with its size before it: what the log stores."""
        most = self._options.max_msg_size
        size = self._int32("E_BAD_MESSAGE", f"{command} failed to read message body size")
        if size <= 0:
            raise Refused("E_BAD_MESSAGE", f"{command} invalid message body size {size}")
        if size > most:
            raise Refused("E_BAD_MESSAGE", f"{command} message too big {size} > {most}")
        return _INT32.pack(size) + self._take(size, "E_BAD_MESSAGE", f"{command} failed to read message body")

    def run(self, line: bytes) -> tuple[bytes, int]:
        """The messages of all PUBs that have come whole, are right, and begin with this very ``line``; each with its size."""
        incoming, most, head = self._incoming, self._options.max_msg_size, len(line) + 4
        buffer, at, parts = incoming.buffer, incoming.position, list[bytearray]()
        while len(parts) < _TURN and buffer.startswith(line, at) and at + head <= len(buffer):
            (size,) = _INT32.unpack_from(buffer, at + head - 4)
            end = at + head + size
            if not 0 < size <= most or end > len(buffer):
                break
            parts.append(buffer[at + head - 4 : end])
            at = end
        incoming.position = at
        return b"".join(parts), len(parts)

    def messages(self) -> tuple[bytes, int]:
        """The messages of an MPUB, each with its size before it, and how many they are."""
        most = self._options.max_body_size
        size = self._int32("E_BAD_BODY", "MPUB failed to read body size")
        if size <= 0:
            raise Refused("E_BAD_BODY", f"MPUB invalid body size {size}")
        if size > most:
            raise Refused("E_BAD_BODY", f"MPUB body too big {size} > {most}")
        count = self._int32("E_BAD_BODY", "MPUB failed to read message count")
        if not 0 < count <= (most - 4) // 5:
            raise Refused("E_BAD_BODY", f"MPUB invalid message count {count}")
        return self._incoming.take(self._walk(count)), count

    def _walk(self, count: int) -> int:
        """The bytes of ``count`` messages, each checked as it arrives; their sizes count, not what the client
        said of the whole, which some clients get wrong and nsqd does not look at."""
        incoming, unpack, most = self._incoming, _INT32.unpack_from, self._options.max_msg_size
        buffer, offset, end = incoming.buffer, 0, self._options.max_body_size + _SPARE
        position, here = incoming.position, len(buffer) - incoming.position
        for at in range(count):
            if here < offset + 4:
                self._await_size(at, offset)
                position, here = incoming.position, len(buffer) - incoming.position
            (size,) = unpack(buffer, position + offset)
            if size <= 0:
                raise Refused("E_BAD_MESSAGE", f"MPUB invalid message({at}) body size {size}")
            if size > most:
                raise Refused("E_BAD_MESSAGE", f"MPUB message too big {size} > {most}")
            offset += 4 + size
            if not at % _TURN:
                incoming.slices.breathe()
            if offset > end:
                raise Refused("E_BAD_BODY", f"MPUB body too big {offset} > {self._options.max_body_size}")
        self._await_body(offset)
        return offset

    def _await_size(self, at: int, offset: int) -> None:
        self._await_body(offset)
        try:
            self._incoming.need(offset + 4)
        except EndOfStream:
            raise Refused("E_BAD_MESSAGE", f"MPUB failed to read message({at}) body size") from None

    def _await_body(self, offset: int) -> None:
        try:
            self._incoming.need(offset)
        except EndOfStream:
            raise Refused("E_BAD_MESSAGE", "MPUB failed to read message body") from None

    def _int32(self, code: str, words: str) -> int:
        try:
            return self._incoming.int32()
        except EndOfStream:
            raise Refused(code, words) from None

    def _take(self, count: int, code: str, words: str) -> bytes:
        try:
            return self._incoming.take(count)
        except EndOfStream:
            raise Refused(code, words) from None
