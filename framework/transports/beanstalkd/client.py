"""A small client of beanstalkd, for scripts and tests: every command of the protocol as a method, and pipelining.

It is no part of the runtime. It works in gevent and in plain threads; one client belongs to one greenlet at a time, and to the
thread and the process that made it: another use raises WrongUse, and disturbs nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from gevent import monkey

from framework.errors import BrokerUnreachable, FrameworkError, ProtocolError, WrongUse
from framework.forked import forget_in_child
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.dial import CONNECT_TIMEOUT, Line, open_line
from framework.transports.beanstalkd.error_answers import (
    BY_WORD,
    BadFormat,
    BeanstalkdError,
    Buried,
    DeadlineSoon,
    Draining,
    ExpectedCRLF,
    InternalError,
    JobTooBig,
    NotFound,
    NotIgnored,
    OutOfMemory,
    TimedOut,
    UnknownCommand,
)  # fmt: skip
from framework.transports.beanstalkd.urls import read

__all__ = [
    "BadFormat", "BeanstalkdError", "Buried", "Client", "DeadlineSoon", "Draining", "ExpectedCRLF", "InternalError", "Job",
    "JobTooBig", "NotFound", "NotIgnored", "OutOfMemory", "Pipeline", "TimedOut", "UnknownCommand",
]  # fmt: skip

WINDOW = 200
"""Commands under way at once in ``put_many`` and in a pipeline: enough to hide the network, no more than both sides buffer."""
T = TypeVar("T")
_get_ident = monkey.get_original("_thread", "get_ident")  # patched, it would be a greenlet's


@dataclass(frozen=True, slots=True)
class Job:
    """A job, reserved or looked at."""

    id: int
    body: bytes


class Client:
    """A connection to one server: ``Client("host:11300", use="orders", watch=["orders"])``. Also a context manager.

    ``address``: ``host``, ``host:port`` or ``beanstalkd://host:port``. ``timeout``: seconds that connecting, and each answer, may
    take; a reserve has its own timeout on top. It does not connect again: after BrokerUnreachable make a new one.

    Every method raises BrokerUnreachable, ProtocolError, WrongUse for what no server would take (nothing is sent), and the
    BeanstalkdError of the server's answer.
    """

    def __init__(
        self, address: str = "127.0.0.1", *, use: str = "default", watch: str | Iterable[str] = "default",
        timeout: float = CONNECT_TIMEOUT,
    ) -> None:  # fmt: skip
        self._timeout = timeout
        self._thread = _get_ident()
        self._busy = False
        self._forked = False
        tubes = [watch] if isinstance(watch, str) else list(watch)
        for tube in (use, *tubes):
            wire.check_tube(tube)
        self._line: Line | None = open_line(_node(address), timeout)
        forget_in_child(self)
        try:
            self._set_up(use, tubes)
        except BaseException:
            self.close()
            raise

    def _set_up(self, use: str, tubes: Sequence[str]) -> None:
        if use != "default":
            self.use(use)
        for tube in tubes:
            if tube != "default":  # which is watched from the beginning
                self.watch(tube)
        if "default" not in tubes:
            self.ignore("default")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Jobs that it holds are ready again. Another greenlet that waits gets BrokerUnreachable."""
        if not self._forked:
            self._check_thread()
        if self._line is not None:
            self._line.close()
            self._line = None

    def forget(self) -> None:
        """In a forked child: it is the parent's; answers to that would be read here, and its end be kept from the server."""
        if self._line is not None:
            self._forked = True
            self._line.forget()

    # --- producing -----------------------------------------------------------------------------------------

    def use(self, tube: str) -> None:
        """Put, peek-* and kick work on ``tube`` from now on."""
        self._ask(wire.use(tube), "USING")

    def put(self, body: bytes | str, *, priority: int = wire.DEFAULT_PRIORITY, delay: float = 0, ttr: float = 60) -> int:
        """Store a job in the used tube; returns its id. A str is sent as UTF-8. Times are rounded up to whole seconds.

        Raises Buried, Draining, JobTooBig, OutOfMemory."""
        return _inserted(self._ask(_put(body, priority, delay, ttr), "INSERTED", "BURIED"))

    def put_many(
        self, bodies: Iterable[bytes | str], *, priority: int = wire.DEFAULT_PRIORITY, delay: float = 0, ttr: float = 60
    ) -> list[int | FrameworkError]:
        """Put them all without waiting for each answer. Returns, in their order, the ids, and for those that the server did
        not queue the error that ``put`` would have raised."""
        with self.pipeline() as pipeline:
            for body in bodies:
                pipeline.put(body, priority=priority, delay=delay, ttr=ttr)
        return pipeline.results

    def pipeline(self) -> Pipeline:
        """Commands without waiting for their answers: see ``Pipeline``."""
        return Pipeline(self)

    # --- consuming -----------------------------------------------------------------------------------------

    def watch(self, tube: str) -> int:
        """Reserve from ``tube`` as well; returns how many tubes are watched."""
        return self._ask(wire.watch(tube), "WATCHING").number

    def ignore(self, tube: str) -> int:
        """Reserve from ``tube`` no more; returns how many tubes are watched. Raises NotIgnored for the last one."""
        return self._ask(wire.ignore(tube), "WATCHING").number

    def reserve(self, timeout: float | None = None) -> Job:
        """The next job of the watched tubes, within ``timeout`` seconds (rounded up; 0: at once; None or inf: for ever).

        Raises TimedOut, DeadlineSoon."""
        if timeout is not None and timeout != math.inf:
            return self._reserve(_whole(timeout))
        while True:  # in pieces, so that a dead server is noticed
            try:
                return self._reserve(60)
            except TimedOut:
                pass

    def _reserve(self, seconds: int) -> Job:
        return _job(self._ask(wire.reserve_with_timeout(seconds), "RESERVED", patience=seconds))

    def reserve_job(self, job: Job | int) -> Job:
        """This very job, if it is ready, delayed or buried. Raises NotFound; UnknownCommand before beanstalkd 1.12."""
        return _job(self._ask(wire.reserve_job(_id(job)), "RESERVED"))

    def delete(self, job: Job | int) -> None:
        """It is done. Raises NotFound when it is reserved by another."""
        self._ask(wire.delete(_id(job)), "DELETED")

    def release(self, job: Job | int, *, priority: int = wire.DEFAULT_PRIORITY, delay: float = 0) -> None:
        """Give a reserved job back. Raises NotFound, Buried."""
        self._ask(wire.release(_id(job), priority, _whole(delay)), "RELEASED", job=_id(job))

    def bury(self, job: Job | int, *, priority: int = wire.DEFAULT_PRIORITY) -> None:
        """Set a reserved job aside until it is kicked. Raises NotFound."""
        self._ask(wire.bury(_id(job), priority), "BURIED")

    def touch(self, job: Job | int) -> None:
        """Start the time to run of a reserved job anew. Raises NotFound."""
        self._ask(wire.touch(_id(job)), "TOUCHED")

    # --- looking, and other work ---------------------------------------------------------------------------

    def peek(self, job: int) -> Job:
        """Look at a job in any state. Raises NotFound."""
        return _job(self._ask(wire.peek(job), "FOUND"))

    def peek_ready(self) -> Job:
        """The next job of the used tube. Raises NotFound."""
        return _job(self._ask(wire.PEEK_READY, "FOUND"))

    def peek_delayed(self) -> Job:
        """The delayed job of the used tube that is ready first. Raises NotFound."""
        return _job(self._ask(wire.PEEK_DELAYED, "FOUND"))

    def peek_buried(self) -> Job:
        """The job of the used tube that was buried first. Raises NotFound."""
        return _job(self._ask(wire.PEEK_BURIED, "FOUND"))

    def kick(self, most: int) -> int:
        """Make buried jobs of the used tube ready, where there are none delayed ones; returns how many."""
        return self._ask(wire.kick(most), "KICKED").number

    def kick_job(self, job: Job | int) -> None:
        """Make this buried or delayed job ready. Raises NotFound."""
        self._ask(wire.kick_job(_id(job)), "KICKED")

    def pause_tube(self, tube: str, delay: float) -> None:
        """No job of ``tube`` is reserved for ``delay`` seconds; 0 ends a pause. Raises NotFound."""
        self._ask(wire.pause_tube(tube, _whole(delay)), "PAUSED")

    def stats(self) -> dict[str, str]:
        """The server's statistics, as text."""
        return wire.stats(self._ask(wire.STATS, "OK").data)

    def stats_job(self, job: Job | int) -> dict[str, str]:
        """Raises NotFound."""
        return wire.stats(self._ask(wire.stats_job(_id(job)), "OK").data)

    def stats_tube(self, tube: str) -> dict[str, str]:
        """Raises NotFound."""
        return wire.stats(self._ask(wire.stats_tube(tube), "OK").data)

    def tubes(self) -> list[str]:
        """Every tube there is."""
        return wire.names(self._ask(wire.LIST_TUBES, "OK").data)

    def watching(self) -> list[str]:
        """The tubes that this client watches."""
        return wire.names(self._ask(wire.LIST_TUBES_WATCHED, "OK").data)

    def using(self) -> str:
        """The tube that this client uses."""
        return self._ask(wire.LIST_TUBE_USED, "USING").data.decode()

    # --- the connection ------------------------------------------------------------------------------------

    def _ask(self, command: bytes, *words: str, patience: float = 0.0, job: int = 0) -> wire.Reply:
        with self._alone():
            self._send(command)
            return self._answer(words, patience, job)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two greenlets that ask at once would have the answers of each other."""
        self._check_thread()
        if self._busy:
            raise WrongUse("another greenlet waits for an answer on this client: make one client for each")
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _check_thread(self) -> None:
        if self._forked:
            raise WrongUse(
                "this client was made before a fork, and its socket belongs to the parent: make one client for each process"
            )
        if _get_ident() != self._thread:
            raise WrongUse("this client was made in another thread, and its socket belongs to that: make one client for each")

    def _send(self, commands: bytes) -> None:
        self._do(lambda line: line.send(commands), 0.0)

    def _answer(self, words: Sequence[str], patience: float = 0.0, job: int = 0) -> wire.Reply:
        """``job``: that of the command, which the answer does not repeat."""
        reply = self._do(Line.next, patience)
        if reply.word in words:
            return reply
        if reply.word == "BURIED":
            raise Buried(reply.word, job=reply.number or job)
        if reply.word not in BY_WORD:
            self.close()
            raise ProtocolError(f"beanstalkd answered {reply.word} where {' or '.join(words)} was due")
        if reply.word in wire.OUT_OF_STEP:
            self.close()
        raise BY_WORD[reply.word](reply.word, fatal=reply.word in wire.OUT_OF_STEP)

    def _do(self, work: Callable[[Line], T], patience: float) -> T:
        """After a failure an answer may still come, to a question that nobody waits for: the connection is closed."""
        if self._line is None:
            raise BrokerUnreachable("this client is closed: make a new one")
        try:
            self._line.settimeout(self._timeout + patience)
            return work(self._line)
        except TimeoutError:
            self.close()
            raise BrokerUnreachable(f"beanstalkd did not answer within {self._timeout + patience:g} s") from None
        except OSError as error:
            self.close()
            raise BrokerUnreachable(f"the connection to beanstalkd broke: {error}") from error
        except BaseException:
            self.close()
            raise


class Pipeline:
    """``with client.pipeline() as pipeline: …``: its methods send without waiting; ``results`` has their answers at the end.

    A result is what the client's method of that name returns, or the error that it would raise.
    """

    def __init__(self, client: Client) -> None:
        self.results: list[int | FrameworkError] = []
        self._client = client
        self._commands: list[bytes] = []
        self._awaited: list[tuple[tuple[str, ...], int]] = []
        """The words that each may be answered with, and the job that it is about."""

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._flush()

    def put(
        self, body: bytes | str, *, priority: int = wire.DEFAULT_PRIORITY, delay: float = 0, ttr: float = 60
    ) -> None:  # fmt: skip
        """Its result is the job's id."""
        self._add(_put(body, priority, delay, ttr), "INSERTED", "BURIED")

    def use(self, tube: str) -> None:
        """Its result is 0, as those of the following."""
        self._add(wire.use(tube), "USING")

    def delete(self, job: Job | int) -> None:
        self._add(wire.delete(_id(job)), "DELETED")

    def release(self, job: Job | int, *, priority: int = wire.DEFAULT_PRIORITY, delay: float = 0) -> None:
        self._add(wire.release(_id(job), priority, _whole(delay)), "RELEASED", job=_id(job))

    def bury(self, job: Job | int, *, priority: int = wire.DEFAULT_PRIORITY) -> None:
        self._add(wire.bury(_id(job), priority), "BURIED")

    def touch(self, job: Job | int) -> None:
        self._add(wire.touch(_id(job)), "TOUCHED")

    def kick_job(self, job: Job | int) -> None:
        self._add(wire.kick_job(_id(job)), "KICKED")

    def _add(self, command: bytes, *words: str, job: int = 0) -> None:
        self._commands.append(command)
        self._awaited.append((words, job))
        if len(self._commands) == WINDOW:
            self._flush()

    def _flush(self) -> None:
        commands, self._commands = self._commands, []
        awaited, self._awaited = self._awaited, []
        with self._client._alone():
            if commands:
                self._client._send(b"".join(commands))
            self.results += [self._result(words, job) for words, job in awaited]

    def _result(self, words: tuple[str, ...], job: int) -> int | FrameworkError:
        try:
            reply = self._client._answer(words, job=job)
            return _inserted(reply) if "INSERTED" in words else 0
        except (BeanstalkdError, BrokerUnreachable) as error:
            return error


def _node(address: str) -> str:
    nodes = read([address if "://" in address else f"beanstalkd://{address}"]).nodes
    return nodes[0]


def _put(body: bytes | str, priority: int, delay: float, ttr: float) -> bytes:
    return wire.put(body.encode() if isinstance(body, str) else body, priority, _whole(delay), _whole(ttr))


def _inserted(reply: wire.Reply) -> int:
    if reply.word == "BURIED":
        raise Buried(reply.word, job=reply.number)
    return reply.number


def _job(reply: wire.Reply) -> Job:
    return Job(reply.number, reply.data)


def _id(job: Job | int) -> int:
    return job.id if isinstance(job, Job) else job


def _whole(seconds: float) -> int:
    """Less than a second must not become none. Raises WrongUse."""
    if not math.isfinite(seconds):
        raise WrongUse(f"{seconds!r} seconds: beanstalkd takes a number of them")
    return math.ceil(seconds)
