"""Frames of the remoting protocol: a request or an answer, with a header in JSON or in RocketMQ's own binary form. No I/O here.

    int32 length            of all after this field
    int32 type<<24 | header length
    header, body

Source: RemotingCommand and RocketMQSerializable of RocketMQ 5.3.3; golden bytes of them stand in the tests.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

import msgspec

from framework.decoding import UNREADABLE
from framework.errors import ProtocolError

MAX_FRAME: Final = 16 * 1024 * 1024
"""Bytes of a frame, its first length included: a server takes and sends no larger one as it is configured by default."""
VERSION: Final = 479
"""What we say we are: 5.3.3. A server answers some versions in other words."""
RESPONSE, ONEWAY = 1, 2
_JSON, _BINARY = 0, 1
_HEAD: Final = struct.Struct(">ii")
_BINARY_HEAD: Final = struct.Struct(">hbhii")
_INT32, _INT16 = struct.Struct(">i"), struct.Struct(">h")


class Language(IntEnum):
    """Which library speaks. In JSON it is written by its name."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


_LANGUAGES = {language.name: language for language in Language}
_NAMES = {int(language): language.name for language in Language}


class Frame(msgspec.Struct, gc=False):
    """A request, or the answer to one, which has its ``opaque``."""

    code: int
    """Of a request: what is asked for; of an answer: how it went (``codes``)."""
    opaque: int = 0
    """Chosen by whoever asks, on a connection; from 0 to 2**31 - 1."""
    fields: Mapping[str, str] = {}
    """extFields: the parameters."""
    body: bytes = b""
    flag: int = 0
    remark: str = ""
    """In an answer that is an error: the server's words."""
    language: int = Language.PYTHON
    version: int = VERSION

    @property
    def is_answer(self) -> bool:
        return bool(self.flag & RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Nobody waits for an answer."""
        return bool(self.flag & ONEWAY)


class _Header(msgspec.Struct, gc=False):
    """In JSON. A field that is null is one that is missing."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    extFields: dict[str, str | None] | None = None  # noqa: N815 - its name there
    language: str | int = "JAVA"
    version: int = 0


class _Asking(msgspec.Struct, gc=False):
    """As it is written, where there is no remark."""

    code: int
    language: str
    version: int
    opaque: int
    flag: int
    extFields: Mapping[str, str]  # noqa: N815 - its name there


_read_header = msgspec.json.Decoder(_Header).decode
_write_header = msgspec.json.Encoder().encode


def encode(frame: Frame) -> bytes:
    """With a header in JSON, which carries every code. Raises ProtocolError where it is larger than any server takes."""
    language = _NAMES.get(frame.language, "OTHER")
    header: Any = _Asking(frame.code, language, frame.version, frame.opaque, frame.flag, frame.fields)
    if frame.remark:
        header = msgspec.structs.asdict(header) | {"remark": frame.remark}
    return _framed(_JSON, _write_header(header), frame.body)


def encode_binary(frame: Frame) -> bytes:
    """With a binary header. Raises ProtocolError for a code over 16 bits, which it cannot carry: those of POP are larger."""
    if not -(2**15) <= frame.code < 2**15:
        raise ProtocolError(f"a binary header has 16 bits for a code, and {frame.code} needs more: encode it in JSON")
    remark = frame.remark.encode()
    fields = b"".join(map(_binary_field, frame.fields.items()))
    header = _BINARY_HEAD.pack(frame.code, frame.language, frame.version, frame.opaque, frame.flag)
    return _framed(_BINARY, b"".join((header, _sized(remark), _sized(fields))), frame.body)


def _framed(kind: int, header: bytes, body: bytes) -> bytes:
    length = 4 + len(header) + len(body)
    if length + 4 > MAX_FRAME:
        raise ProtocolError(f"a frame of {length + 4} bytes, and RocketMQ takes up to {MAX_FRAME}")
    return b"".join((_HEAD.pack(length, kind << 24 | len(header)), header, body))


def _binary_field(field: tuple[str, str]) -> bytes:
    name, value = field[0].encode(), field[1].encode()
    return b"".join((_INT16.pack(len(name)), name, _sized(value)))


def _sized(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data


class Decoder:
    """Frames from a stream that is cut anywhere. An unfinished one is kept as it came, and joined once it is whole."""

    __slots__ = ("_missing", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing = 0
        """Bytes until what is held is whole, or tells how long it is."""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes, in order.

        Raises ProtocolError for what no server sends, a frame that announces more than ``MAX_FRAME`` at its first bytes; the
        decoder is of no use after that.
        """
        if self._pieces:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
        frames: list[Frame] = []
        at, end = 0, len(data)
        while at < end:
            if end - at < _HEAD.size:
                following, mark = self._end_of(data, at, end), 0
            else:
                length, mark = _HEAD.unpack_from(data, at)
                if not 4 <= length <= MAX_FRAME - 4:
                    raise _too_long(length, data, at)
                following = at + 4 + length
            if following > end:
                self._pieces.append(data[at:] if at else data)
                self._missing = following - end
                break
            frames.append(_frame(data, at, following, mark))
            at = following
        return frames

    @staticmethod
    def _end_of(data: bytes, at: int, end: int) -> int:
        """Where the frame at ``at`` ends; as far as that is not known, where its first eight bytes do."""
        if end - at < 4:
            return at + 8
        (length,) = _INT32.unpack_from(data, at)
        if not 4 <= length <= MAX_FRAME - 4:
            raise _too_long(length, data, at)
        return at + 4 + int(length)


def _too_long(length: int, data: bytes, at: int) -> ProtocolError:
    return garbage(f"a frame of {length} bytes ({MAX_FRAME - 4} are allowed)", data, at)


def _frame(data: bytes, at: int, following: int, mark: int) -> Frame:
    kind, size = mark >> 24, mark & 0xFFFFFF
    body_at = at + 8 + size
    if body_at > following:
        raise garbage(f"a header of {size} bytes in a frame of {following - at}", data, at)
    if kind == _JSON:
        return _from_json(data[at + 8 : body_at], data[body_at:following])
    if kind == _BINARY:
        return _from_binary(data[at + 8 : body_at], data[body_at:following])
    raise garbage(f"a header of the unknown type {kind}", data, at)


def _from_json(header: bytes, body: bytes) -> Frame:
    try:
        said = _read_header(header)
    except UNREADABLE as error:
        raise garbage(f"a header that cannot be read ({error})", header, 0) from None
    fields: Any = said.extFields or {}
    if None in fields.values():
        fields = {name: value for name, value in fields.items() if value is not None}
    language = said.language if isinstance(said.language, int) else _LANGUAGES.get(said.language, Language.OTHER)
    return Frame(said.code, said.opaque, fields, body, said.flag, said.remark or "", language, said.version)


def _from_binary(header: bytes, body: bytes) -> Frame:
    try:
        code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header)
        remark, at = _take_sized(header, _BINARY_HEAD.size)
        fields, at = _take_sized(header, at)
        if at != len(header):
            raise garbage(f"{len(header) - at} bytes too many", header, 0)
        return Frame(code, opaque, _fields(fields), body, flag, remark.decode(), language, version)
    except (struct.error, UnicodeDecodeError) as error:
        raise garbage(f"a binary header that cannot be read ({error})", header, 0) from None


def _fields(data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        (size,) = _INT16.unpack_from(data, at)
        name, at = _take(data, at + 2, size)
        value, at = _take_sized(data, at)
        found[name.decode()] = value.decode()
    return found


def _take_sized(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _INT32.unpack_from(data, at)
    return _take(data, at + 4, size)


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size < 0 or at + size > len(data):
        raise garbage(f"a field of {size} bytes where {len(data) - at} are left", data, 0)
    return data[at : at + size], at + size


def number_in(fields: Mapping[str, str], name: str) -> int | None:
    """What a header says, of 64 bits and not less than 0; None where that is missing, or is no number."""
    said = fields.get(name, "")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 20 and int(said) < 2**63 else None


def time_in(fields: Mapping[str, str], name: str) -> int:
    """As ``number_in``. Raises ValueError where that is None."""
    if (said := number_in(fields, name)) is None:
        raise ValueError(f"{name} is no time: {fields.get(name, '')[:40]!r}")
    return said


def garbage(what: str, data: bytes, at: int) -> ProtocolError:
    """The error for what stands at ``at``."""
    return ProtocolError(f"not RocketMQ's bytes: {what}, in {data[at : at + 40]!r}")
