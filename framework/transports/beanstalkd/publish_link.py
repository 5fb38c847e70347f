"""One publishing connection to a beanstalkd: puts of many greenlets pipelined, their answers matched to them in order.

It lives on one hub. The ``Failover`` decides whether to try again, and where.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from time import monotonic

from gevent.hub import Waiter, get_hub

from framework.errors import BrokerError, BrokerUnreachable, MessageRefused, ProtocolError, PublishError
from framework.hubs import call_on_hub
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.dial import CONNECT_TIMEOUT, Line, dial
from framework.transports.beanstalkd.hub_socket import HubSocket
from framework.transports.looks import Looks
from framework.transports.publish_link import NotStored, Refused, another

_TICK = 1.0
_DOUBT = 1.0
"""Seconds without a word, while an answer is owed, after which nothing more is sent there."""
_QUIET = 10.0
"""Seconds without traffic after which the server is asked whether it is there: beanstalkd has no heartbeats."""
_IDLE = 0.001  # seconds after which a look at the socket comes before trusting it: one recv

_BROKEN = wire.put(b"x").removesuffix(b"\r\n") + b"xx"
_UNKNOWN = "whether the messages are stored is not known, and publishing them again may double them"

Put = tuple[str, bytes]
"""A tube, and a ``put`` command for it."""


class Batch:
    """Puts into one tube that were sent together, and what is known of each."""

    __slots__ = ("answers", "count", "ends", "publisher", "since", "timeout")

    def __init__(self, count: int, timeout: float) -> None:
        self.count = count
        self.timeout = timeout
        """Seconds that it waits without any answer, whosever."""
        self.answers: list[Exception | None] = []
        self.ends: list[int] = []
        """Where the last byte of each lies in the stream of all that was sent."""
        self.since = monotonic()
        self.publisher: Waiter[None] | None = Waiter()
        """None: its publisher waits no more."""

    def abandoned(self) -> Batch:
        """What takes its place among those whose answers are still to come."""
        other = Batch(self.count, math.inf)
        other.answers, other.ends, other.since, other.publisher = list(self.answers), self.ends, self.since, None
        return other

    def tell(self) -> None:
        """On the hub: its publisher goes on, at once."""
        if self.publisher is not None:
            self.publisher.switch(None)


class PublishLink:
    """``publish_link.PublishLink``; made by ``to``."""

    def __init__(self, line: Line) -> None:
        self.node = line.node
        self.error: Exception | None = None
        self.silent: Callable[[], None] = _nothing
        self.elsewhere: Callable[[], bool] = another
        self._pending: deque[Batch | None] = deque()
        """Whose answers are awaited; None: nobody's, it must only not be an error."""
        self._tube = "default"
        self._refusing = False
        """It is left as soon as nobody waits for an answer any more."""
        self._queued = 0  # bytes ever given to the socket
        self._asked = monotonic()
        self._doubted = 0.0  # when; what was read later takes it back
        self._hub_socket = HubSocket(line, self._take, self._end)
        self._looks = Looks(_TICK, self._tick, self._look)

    @classmethod
    def to(cls, node: str, timeout: float) -> PublishLink:
        """Dial ``node`` and hear a word of it: a server that hangs is dialled as quickly. Blocks.

        Raises BrokerUnreachable, BrokerError, ProtocolError."""
        with dial(node, min(timeout, CONNECT_TIMEOUT)) as line:
            line.ask(wire.LIST_TUBE_USED, "USING")
            return cls(line)

    # --- publishers ----------------------------------------------------------------------------------------

    def ask(self, command: Put, until: float) -> Exception | None:
        return self.ask_each([command], until - monotonic())[0]

    def ask_each(self, commands: Sequence[Put], timeout: float) -> list[Exception | None]:
        if self.error is not None:
            return [NotStored(str(self.error))] * len(commands)
        pieces: list[bytes] = []
        batches = [
            self._batch(tube, [put for _, put in puts], timeout, pieces) for tube, puts in groupby(commands, itemgetter(0))
        ]
        self._hub_socket.send(b"".join(pieces))
        self._looks.at(monotonic() + timeout)
        for batch in batches:
            if batch.publisher is not None:
                batch.publisher.get()
        return [answer for batch in batches for answer in batch.answers]

    def _batch(self, tube: str, puts: Sequence[bytes], timeout: float, pieces: list[bytes]) -> Batch:
        if tube != self._tube:
            self._tube = tube
            self._add(wire.use(tube), pieces)
            self._pending.append(None)
        batch = Batch(len(puts), timeout)
        for put in puts:
            batch.ends.append(self._add(put, pieces))
        self._pending.append(batch)
        return batch

    def _add(self, command: bytes, pieces: list[bytes]) -> int:
        pieces.append(command)
        self._queued += len(command)
        return self._queued

    def usable(self) -> bool:
        if self.error is None and (silent := monotonic() - self._hub_socket.heard) > _IDLE:
            if not self._pending:
                self._hub_socket.poll()
            elif silent > _TICK:  # the hub was blocked, perhaps; and answers are given on the hub only
                call_on_hub(self._hub_socket.poll)
        return self.error is None and not self._refusing and self._doubted <= self._hub_socket.heard

    def prove(self, until: float) -> Exception | None:
        """As ``publish_link.PublishLink``: a job that does not end as it says is refused, also where no job is taken any more."""
        outcome = self.ask((self._tube, _BROKEN), until)
        answered = isinstance(outcome, Refused) or (isinstance(outcome, PublishError) and outcome.stored is False)
        return None if answered else outcome

    def close(self) -> None:
        self._end(BrokerUnreachable("the producer was closed"))

    def shut(self) -> None:
        self._hub_socket.shut()

    def fileno(self) -> int:
        return self._hub_socket._sock.fileno()

    # --- answers -------------------------------------------------------------------------------------------

    def _take(self, replies: list[wire.Reply]) -> None:
        self._asked = monotonic()
        done: list[Batch] = []
        for reply in replies:
            if not self._pending:
                raise ProtocolError(f"beanstalkd {self.node} sent {reply.word}, which nothing asked for")
            batch = self._pending[0]
            if batch is None:
                if reply.word != "USING":
                    raise BrokerError(reply.word, f"from beanstalkd {self.node} to use")
                self._pending.popleft()
                continue
            batch.answers.append(self._verdict(reply))
            if len(batch.answers) == batch.count:
                done.append(batch)
                self._pending.popleft()
            if reply.word in wire.OUT_OF_STEP:  # what follows may be a body, read as commands
                self._end(BrokerError(reply.word, f"from beanstalkd {self.node} to put"))
                break
        if self._refusing and not self._pending:
            self._end(BrokerUnreachable(f"beanstalkd {self.node} takes no jobs"))
        for batch in done:  # last of all: whoever waits goes on at once, and may publish again
            batch.tell()

    def _verdict(self, reply: wire.Reply) -> Exception | None:
        word = reply.word
        if word == "INSERTED":
            return None
        words = f"beanstalkd {self.node}: {word}"
        if word in ("DRAINING", "OUT_OF_MEMORY"):
            self._refusing = self._refusing or self.elsewhere()
        if word == "DRAINING":
            return Refused(f"{words}: it takes no more jobs until it is started again")
        if word == "OUT_OF_MEMORY":
            return Refused(f"{words}: it has no room for the job")
        if word == "JOB_TOO_BIG":
            return MessageRefused(f"{words}: a body is over its -z; raise that, or make the body smaller", stored=False)
        if word == "BURIED":
            return PublishError(f"{words} {reply.number}: it had no memory to queue the job, kick it when it has", stored=True)
        return PublishError(words, stored=False if word in wire.OUT_OF_STEP else None)

    def _tick(self) -> None:
        now = monotonic()
        self._looks.ticked(now)
        if not self._pending and now - self._asked > _QUIET:
            self._asked = now
            self._queued += len(wire.LIST_TUBE_USED)
            self._pending.append(None)
            self._hub_socket.send(wire.LIST_TUBE_USED)
        self._look()

    # --- answers that do not come --------------------------------------------------------------------------

    def _look(self) -> None:
        """Publishers that have waited for long enough wait no more. Answers that come later are dropped."""
        self._hub_socket.poll()  # a hub that was blocked has answers waiting
        now, heard = monotonic(), self._hub_socket.heard
        waiting = [batch for batch in self._pending if batch is not None and batch.publisher is not None]
        over = [batch for batch in waiting if now - max(batch.since, heard) >= batch.timeout]
        silence = now - max(self._oldest(), heard) if self._pending else 0.0
        if over or silence >= _DOUBT:
            self._doubted = now
            self.silent()
        if silence >= _DOUBT and (len(over) == len(waiting) or (over and over[-1].ends[-1] > self._hub_socket.sent)):
            self._end(BrokerUnreachable(f"beanstalkd {self.node} gave no answer for {silence:.1f} s"))
            return
        self._give_up(over)
        self._looks.looked(min((max(each.since, heard) + each.timeout for each in waiting if each not in over), default=math.inf))

    def _give_up(self, over: Sequence[Batch]) -> None:
        for i, batch in enumerate(self._pending):
            if batch is not None and batch in over:
                self._pending[i] = batch.abandoned()
        for batch in over:
            words = f"beanstalkd {self.node} gave no answer for {batch.timeout:.1f} s; {_UNKNOWN}"
            batch.answers += [PublishError(words, stored=None)] * (batch.count - len(batch.answers))
            batch.tell()

    def _oldest(self) -> float:
        return next((batch.since for batch in self._pending if batch is not None), self._asked)

    def _end(self, error: Exception) -> None:
        if self.error is not None:
            return
        self.error = error
        self._looks.close()
        self._hub_socket.close()
        waiting, self._pending = [batch for batch in self._pending if batch is not None], deque()
        if waiting:
            get_hub().loop.run_callback(_fail, waiting, self._hub_socket.sent, error)


def _fail(waiting: Sequence[Batch], sent: int, error: Exception) -> None:
    """In the hub: tell each whether the server can have read the whole of its put (``sent`` bytes were sent)."""
    words = f"{error}; {_UNKNOWN}"
    for batch in waiting:
        for end in batch.ends[len(batch.answers) :]:
            batch.answers.append(NotStored(str(error)) if end > sent else PublishError(words, stored=None))
        batch.tell()


def _nothing() -> None:
    """Nothing waits for this answer."""
