"""What a worker and a slot process say to each other, as bytes <-> values: msgpack with a length before it, no pickle, no I/O."""

from __future__ import annotations

import sys
import traceback
from functools import cache
from struct import Struct
from typing import Any

import msgspec

from framework.headers import without_surrogates
from framework.message import Message
from framework.observe.logging import encodable

_SIZE = Struct(">I")
TEXT = 20_000
"""Characters of a traceback or of an error's words that travel."""


class Setup(msgspec.Struct, array_like=True, tag=True):
    """To the process, first: whose calls it makes."""

    module: str
    function: str
    """Its qualified name."""
    topic: str
    channel: str
    batch: int
    level: int
    """The least important log records to send."""
    declared_in: str = ""
    """The module that declares the handler, when imported."""
    middleware: list[str] = []
    """The names of what is around its calls, outermost first."""
    observers: list[tuple[str, bytes]] = []
    """``hooks.Observer.elsewhere`` of each that the worker's settings put around them."""


class Delivery(msgspec.Struct, array_like=True):
    """One message."""

    id: bytes
    timestamp: int
    attempts: int
    body: bytes
    node: str
    headers: dict[str, str] | None = None
    lasting_id: bool = False


def delivery(message: Message) -> Delivery:
    headers = without_surrogates(message.headers) if message.headers else None
    return Delivery(
        message.id, message.timestamp, message.attempts, message.body, message.node, headers, message.connection.lasting_ids
    )


class Job(msgspec.Struct, array_like=True, tag=True):
    """To the process: one call."""

    messages: list[Delivery]
    ends_at: float
    """Monotonic, a clock that the processes of a machine share."""


class Log(msgspec.Struct, array_like=True, tag=True):
    """To the process, before a job: its worker has opened the file of its log again, and it does the same."""

    path: str


class Ready(msgspec.Struct, array_like=True, tag=True):
    """From the process: it can take calls."""


class Refused(msgspec.Struct, array_like=True, tag=True):
    """From the process: it can never take calls."""

    words: str


class Record(msgspec.Struct, array_like=True, tag=True):
    """From the process: a log record."""

    name: str
    level: int
    text: str
    trace: str
    path: str
    line: int
    function: str
    created: float
    call: dict[str, Any] | None = None
    extra: dict[str, Any] = {}


class Touch(msgspec.Struct, array_like=True, tag=True):
    """From the process: the handler touches a message of its job."""

    index: int


class Failure(msgspec.Struct, array_like=True):
    """An exception, as data."""

    module: str
    name: str
    args: list[Any]
    fields: dict[str, Any]
    words: str
    trace: str


class Done(msgspec.Struct, array_like=True, tag=True):
    """From the process: the call is over."""

    error: Failure | None
    failed: list[tuple[int, Failure]]
    """What a batch handler said of single messages."""
    published: dict[str, int] = {}
    """Topic -> messages that it has stored since the last call."""


Said = Ready | Refused | Record | Touch | Done
_encode = msgspec.msgpack.Encoder().encode
said = msgspec.msgpack.Decoder(Said).decode
asked = msgspec.msgpack.Decoder(Setup | Job | Log).decode


def frame(value: msgspec.Struct) -> bytes:
    body = _encode(value)
    return _SIZE.pack(len(body)) + body


class Frames:
    """The frames of a stream that is cut anywhere."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        unread = self._unread
        unread += data
        found, at = [], 0
        while len(unread) - at >= _SIZE.size:
            end = at + _SIZE.size + _SIZE.unpack_from(unread, at)[0]
            if end > len(unread):
                break
            found.append(bytes(unread[at + _SIZE.size : end]))
            at = end
        del unread[:at]
        return found


# -- exceptions


class RemoteTraceback(Exception):
    """Where an exception was raised in a slot process; its text is the traceback there."""


def failure(error: BaseException) -> Failure:
    kind = type(error)
    return Failure(
        module=kind.__module__,
        name=kind.__qualname__,
        args=[plain(value) for value in error.args],
        fields={name: value for name, value in vars(error).items() if _is_plain(value)},
        words=_words(error),
        trace=_shortened(encodable("".join(traceback.format_exception(error)))),
    )


def error_of(what: Failure) -> BaseException:
    """The exception again, of its own class where this process has it: policies go by the class."""
    kind = _class_of(what)
    error = _same(kind, what) if kind else None
    if error is None:
        error = _alike(kind or Exception, what)
    error.__cause__ = RemoteTraceback("\n" + what.trace)
    return error


def _class_of(what: Failure) -> type[BaseException] | None:
    found: Any = sys.modules.get(what.module)
    for part in what.name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _same(kind: type[BaseException], what: Failure) -> BaseException | None:
    """As it was there; None when that cannot be had from what has travelled."""
    try:
        error = kind.__new__(kind, *what.args)  # not __init__: it may take other arguments, and do anything
        error.args = tuple(what.args)
        vars(error).update(what.fields)
    except Exception:
        return None
    return error if _words(error) == what.words else None


def _alike(kind: type[BaseException], what: Failure) -> BaseException:
    """One of a class that is named like its own and derived from it, with its words."""
    name = what.name.rpartition(".")[2]
    try:
        like = _like((kind, name))
        error = like.__new__(like)
        error.args = (what.words,)
        vars(error).update(what.fields)
    except Exception:
        error = _like((Exception, name))(what.words)
    return error


@cache
def _like(kind_and_name: tuple[type[BaseException], str]) -> type[BaseException]:
    kind, name = kind_and_name
    return type(name, (kind,), {"__str__": _first_argument})


def _first_argument(error: BaseException) -> str:
    return str(error.args[0])


def _words(error: BaseException) -> str:
    try:
        return _shortened(encodable(str(error)))
    except Exception:  # its own __str__ fails
        return "(its own text cannot be had)"


def _shortened(text: str) -> str:
    half = TEXT // 2
    return text if len(text) <= TEXT else f"{text[:half]}\n[...]\n{text[-half:]}"


def plain(value: object) -> Any:
    return value if _is_plain(value) else _shortened(encodable(repr(value)))


def _is_plain(value: object) -> bool:
    if type(value) is str:
        return len(value) <= TEXT and encodable(value) == value
    if type(value) is int:
        return value.bit_length() < 64
    return value is None or isinstance(value, bool | float | bytes)
