"""beanstalkd's protocol as bytes <-> values: encoders of every command, and a decoder of the server's replies. No I/O here.

Source: beanstalkd's doc/protocol.txt, and beanstalkd 1.12 where the two differ. Commands are checked before they are bytes: of a
``put`` whose line is refused, the server reads the body as the next commands.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from framework.errors import BadMessage, BadName, BrokerError, ProtocolError, WrongUse

MAX_NAME = 200
"""Bytes of a tube's name."""
MAX_NUMBER = 2**32 - 1
"""The highest priority (the least urgent), and the longest delay and time to run, in seconds."""
MAX_ID = 2**64 - 1
MAX_JOB = 65535
"""Bytes of one body: beanstalkd's default -z."""
MAX_BODY = 1024**3
"""Bytes of one body: the most that -z can be. Whatever announces more is no beanstalkd."""
MAX_WAIT = 2**30
"""Seconds of a ``reserve-with-timeout``; 1.12 takes 2**31 and more for no timeout at all."""
URGENT, DEFAULT_PRIORITY = 0, 1024

RESERVE = b"reserve\r\n"
PEEK_READY = b"peek-ready\r\n"
PEEK_DELAYED = b"peek-delayed\r\n"
PEEK_BURIED = b"peek-buried\r\n"
STATS = b"stats\r\n"
LIST_TUBES = b"list-tubes\r\n"
LIST_TUBE_USED = b"list-tube-used\r\n"
LIST_TUBES_WATCHED = b"list-tubes-watched\r\n"
QUIT = b"quit\r\n"

_TUBE = re.compile(r"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]*")
_MAX_LINE = 256
"""Bytes of a reply's line; the longest is USING with a name of 200."""
_FIELD = rb': "?(\d+)"?\n'
_JOB_STATE = re.compile(
    b"\npri" + _FIELD + b"age" + _FIELD + b"delay" + _FIELD + b"ttr" + _FIELD + b"(?:.*\n){0,4}?reserves" + _FIELD
)  # fmt: skip


# --- the client's commands ---------------------------------------------------------------------------------


@lru_cache(1024)
def is_tube(name: str) -> bool:
    """Whether beanstalkd takes ``name`` for a tube."""
    return 1 <= len(name) <= MAX_NAME and _TUBE.fullmatch(name) is not None


def check_tube(name: str) -> str:
    """Return ``name``, or raise BadName."""
    if isinstance(name, str) and is_tube(name):
        return name
    raise BadName(
        f"tube name {name!r} is not valid: use 1 to {MAX_NAME} of the characters a-z A-Z 0-9 - + / ; . $ _ ( ), the first not -"
    )


def put(body: bytes, priority: int = DEFAULT_PRIORITY, delay: int = 0, ttr: int = 60) -> bytes:
    """Times in whole seconds; the server makes a ttr of 0 one of 1. Raises WrongUse, BadMessage (not bytes)."""
    if type(body) is not bytes:
        raise BadMessage(f"a job's body is {type(body).__name__}, not bytes; encode it")
    numbers = _number("priority", priority), _number("delay", delay), _number("ttr", ttr)
    return b"put %d %d %d %d\r\n%b\r\n" % (*numbers, len(body), body)


def use(tube: str) -> bytes:
    return _with_tube("use", tube)


def watch(tube: str) -> bytes:
    return _with_tube("watch", tube)


def ignore(tube: str) -> bytes:
    return _with_tube("ignore", tube)


def stats_tube(tube: str) -> bytes:
    return _with_tube("stats-tube", tube)


def pause_tube(tube: str, seconds: int) -> bytes:
    """No job of ``tube`` is reserved for so many seconds; 0 ends a pause."""
    return b"pause-tube %b %d\r\n" % (check_tube(tube).encode(), _number("delay", seconds))


def reserve_with_timeout(seconds: int) -> bytes:
    """0 answers at once."""
    return b"reserve-with-timeout %d\r\n" % _number("timeout", seconds, MAX_WAIT)


def reserve_job(job: int) -> bytes:
    """Since 1.12; takes a ready, a delayed or a buried job."""
    return b"reserve-job %d\r\n" % _id(job)


def delete(job: int) -> bytes:
    return b"delete %d\r\n" % _id(job)


def release(job: int, priority: int, delay: int) -> bytes:
    return b"release %d %d %d\r\n" % (_id(job), _number("priority", priority), _number("delay", delay))


def bury(job: int, priority: int = DEFAULT_PRIORITY) -> bytes:
    return b"bury %d %d\r\n" % (_id(job), _number("priority", priority))


def touch(job: int) -> bytes:
    return b"touch %d\r\n" % _id(job)


def peek(job: int) -> bytes:
    return b"peek %d\r\n" % _id(job)


def kick(most: int) -> bytes:
    return b"kick %d\r\n" % _number("bound", most)


def kick_job(job: int) -> bytes:
    return b"kick-job %d\r\n" % _id(job)


def stats_job(job: int) -> bytes:
    return b"stats-job %d\r\n" % _id(job)


def _with_tube(verb: str, tube: str) -> bytes:
    return f"{verb} {check_tube(tube)}\r\n".encode()


def _id(job: int) -> int:
    return _number("job id", job, MAX_ID)


def _number(what: str, value: int, most: int = MAX_NUMBER) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise WrongUse(f"{what} {value!r} is out of range: beanstalkd takes a whole number from 0 to {most}")
    return value


# --- the server's replies ----------------------------------------------------------------------------------


class Reply(msgspec.Struct, frozen=True, gc=False):
    """One reply."""

    word: str
    """The first word: ``RESERVED``, ``NOT_FOUND``."""
    number: int = 0
    """A job's id, or a count."""
    data: bytes = b""
    """A job's body, statistics, or the name after USING."""


class Torn(bytes):
    """The body of a job that beanstalkd 1.12 lost: it was killed while it wrote the job anew to tidy its log, and what it reads
    there after its restart ends in zeros, the line's end included."""


ERRORS = frozenset({
    "OUT_OF_MEMORY", "INTERNAL_ERROR", "BAD_FORMAT", "UNKNOWN_COMMAND", "EXPECTED_CRLF", "JOB_TOO_BIG", "DRAINING",
    "DEADLINE_SOON", "TIMED_OUT", "NOT_FOUND", "NOT_IGNORED",
})  # fmt: skip
"""The replies that are not what was asked for."""
OUT_OF_STEP = frozenset({"BAD_FORMAT", "UNKNOWN_COMMAND", "EXPECTED_CRLF"})
"""After one of these to a ``put``, the server may read the rest of a body as commands: close the connection."""

_BARE = {
    word.encode(): Reply(word) for word in (*ERRORS, "DELETED", "RELEASED", "TOUCHED", "BURIED", "KICKED", "PAUSED")
}  # fmt: skip
_DELETED = _BARE[b"DELETED"]
_WORDS = {word.encode(): word for word in ("RESERVED", "FOUND", "OK", "INSERTED", "BURIED", "WATCHING", "KICKED", "USING")}
_LINE = re.compile(
    rb"(?:(RESERVED|FOUND) (\d{1,20})|(OK)) (\d{1,20})\r\n"  # the length of a body is group 4
    rb"|(INSERTED|BURIED|WATCHING|KICKED) (\d{1,20})\r\n"
    rb"|(USING) ([^ \r\n]{1,200})\r\n"
    rb"|([A-Z_]{2,20})\r\n"
)
_BODY_AHEAD, _COUNT, _NAME, _BARE_WORD = 4, 6, 8, 9  # the last group of each alternative of _LINE


def error_of(reply: Reply) -> BrokerError:
    """A reply among ``ERRORS`` as an error."""
    return BrokerError(reply.word, fatal=reply.word in OUT_OF_STEP)


class Decoder:
    """Replies from a stream, cut anywhere.

    Bytes of an unfinished reply are kept as they came and joined once, when the reply is whole; nothing is set aside for what a
    reply announces.
    """

    __slots__ = ("_max_body", "_missing", "_pieces")

    def __init__(self, *, max_body: int = MAX_BODY) -> None:
        self._max_body = max_body
        self._pieces: list[bytes] = []
        self._missing = 0

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that ``data`` completes, in order.

        Raises ProtocolError for bytes that no beanstalkd sends; the decoder is of no use after that.
        """
        if self._pieces:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
        return self._replies(data)

    def _replies(self, data: bytes) -> list[Reply]:
        replies: list[Reply] = []
        append, match = replies.append, _LINE.match
        at, end = 0, len(data)
        while at < end:
            if data.startswith(b"DELETED\r\n", at):  # half of all that a worker hears
                append(_DELETED)
                at += 9
                continue
            line = match(data, at)
            if line is None:
                self._unfinished(data, at)
                break
            kind = line.lastindex
            if kind == _BARE_WORD:
                if (bare := _BARE.get(line[9])) is None:
                    raise _garbage("a reply that the protocol does not have", data, at)
                append(bare)
                at = line.end()
                continue
            if kind != _BODY_AHEAD:
                append(Reply(_WORDS[line[5]], int(line[6])) if kind == _COUNT else Reply("USING", 0, line[8]))
                at = line.end()
                continue
            size = int(line[4])
            if size > self._max_body:
                raise _garbage(f"a body of {size} bytes ({self._max_body} are allowed)", data, at)
            body_at = line.end()
            following = body_at + size + 2
            if following > end:
                self._keep(data, at, following - end)
                break
            body = data[body_at : following - 2]
            if data[following - 2 : following] != b"\r\n":
                if data[following - 2 : following] != b"\0\0" or line[3]:
                    raise _garbage("a body does not end where it should", data, at)
                body = Torn(body)
            append(Reply("OK", 0, body) if line[3] else Reply(_WORDS[line[1]], int(line[2]), body))
            at = following
        return replies

    def _unfinished(self, data: bytes, at: int) -> None:
        """What stands at ``at`` is no reply: not yet, or never."""
        if data.find(b"\n", at, at + _MAX_LINE) >= 0 or len(data) - at >= _MAX_LINE:
            raise _garbage("a reply that the protocol does not have", data, at)
        self._keep(data, at, 1)

    def _keep(self, data: bytes, at: int, missing: int) -> None:
        self._pieces.append(data[at:] if at else data)
        self._missing = missing


def _garbage(what: str, data: bytes, at: int) -> ProtocolError:
    return ProtocolError(f"not a beanstalkd's bytes: {what}, in {data[at : at + 40]!r}")


# --- statistics --------------------------------------------------------------------------------------------


class JobState(msgspec.Struct, frozen=True, gc=False):
    """What a delivery needs of ``stats-job``. Times in seconds."""

    priority: int
    age: int
    delay: int
    """That of its put, or of its last release."""
    ttr: int
    reserves: int
    """How often it was reserved, also by those that died holding it."""


def job_state(data: bytes) -> JobState:
    """Read an answer to ``stats-job``. Raises ProtocolError."""
    found = _JOB_STATE.search(data)
    if found is None:
        raise ProtocolError(f"not a beanstalkd's bytes: no job's statistics, in {data[:80]!r}")
    return JobState(*map(int, found.groups()))


def stats(data: bytes) -> dict[str, str]:
    """The entries of an answer to ``stats``, ``stats-job`` or ``stats-tube``, as text. Raises ProtocolError."""
    return dict(_entry(line) for line in _lines(data))


def names(data: bytes) -> list[str]:
    """The entries of an answer to ``list-tubes`` or ``list-tubes-watched``. Raises ProtocolError."""
    return [_unquoted(line.removeprefix("- ")) for line in _lines(data)]


def _lines(data: bytes) -> list[str]:
    head, *lines = data.decode(errors="replace").splitlines() or [""]
    if head != "---":
        raise ProtocolError(f"not a beanstalkd's bytes: no statistics, in {data[:80]!r}")
    return [line for line in lines if line]


def _entry(line: str) -> tuple[str, str]:
    key, _, value = line.partition(": ")
    return key, _unquoted(value)


def _unquoted(text: str) -> str:
    """1.12 writes values bare, newer ones quote them."""
    return text.strip().strip('"')
