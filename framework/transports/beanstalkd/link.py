"""One publishing connection to a beanstalkd: puts of many greenlets pipelined, their answers matched to them in order.

It lives on one hub. Whether to try again, and where, is the ``Outlet``'s to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from time import monotonic

from gevent.hub import Waiter, get_hub

from framework.errors import BrokerError, BrokerUnreachable, MessageRefused, ProtocolError, PublishError
from framework.transports.beanstalkd import wire
from framework.transports.beanstalkd.dial import CONNECT_TIMEOUT, Line, dial
from framework.transports.beanstalkd.pipe import Pipe
from framework.transports.outlet import NotStored, Refused

_TICK = 1.0
_QUIET = 10.0
"""Seconds without traffic after which the server is asked whether it is there: beanstalkd has no heartbeats."""
_IDLE = 0.001  # seconds after which a look at the socket comes before trusting it: one recv

Put = tuple[str, bytes]
"""A tube, and a ``put`` command for it."""


class Batch:
    """Puts into one tube that were sent together, and what is known of each."""

    __slots__ = ("answers", "count", "ends", "since", "waiter")

    def __init__(self, count: int) -> None:
        self.count = count
        self.answers: list[Exception | None] = []
        self.ends: list[int] = []
        """Where the last byte of each lies in the stream of all that was sent."""
        self.since = monotonic()
        self.waiter = Waiter()


class Link:
    """``outlet.Link``; made by ``to``."""

    def __init__(self, line: Line, patience: float) -> None:
        self.node = line.node
        self.error: Exception | None = None
        self._patience = patience
        self._pending: deque[Batch | None] = deque()
        """Whose answers are awaited; None: nobody's, it must only not be an error."""
        self._tube = "default"
        self._refusing = False
        """It is left as soon as nobody waits for an answer any more."""
        self._queued = 0  # bytes ever given to the pipe
        self._asked = monotonic()
        self._pipe = Pipe(line, self._take, self._end)
        self._ticker = get_hub().loop.timer(_TICK, _TICK, ref=False)
        self._ticker.start(self._tick)

    @classmethod
    def to(cls, node: str, timeout: float, *, patience: float) -> Link:
        """Dial ``node``; blocks. ``patience``: seconds that an answer may take. Raises BrokerUnreachable."""
        with dial(node, min(timeout, CONNECT_TIMEOUT)) as line:
            return cls(line, patience)

    # --- publishers ----------------------------------------------------------------------------------------

    def ask(self, command: Put) -> Exception | None:
        return self.ask_each([command])[0]

    def ask_each(self, commands: Sequence[Put]) -> list[Exception | None]:
        if self.error is not None:
            return [NotStored(str(self.error))] * len(commands)
        pieces: list[bytes] = []
        batches = [self._batch(tube, [put for _, put in puts], pieces) for tube, puts in groupby(commands, itemgetter(0))]
        self._pipe.send(b"".join(pieces))
        for batch in batches:
            batch.waiter.get()
        return [answer for batch in batches for answer in batch.answers]

    def _batch(self, tube: str, puts: Sequence[bytes], pieces: list[bytes]) -> Batch:
        if tube != self._tube:
            self._tube = tube
            self._add(wire.use(tube), pieces)
            self._pending.append(None)
        batch = Batch(len(puts))
        for put in puts:
            batch.ends.append(self._add(put, pieces))
        self._pending.append(batch)
        return batch

    def _add(self, command: bytes, pieces: list[bytes]) -> int:
        pieces.append(command)
        self._queued += len(command)
        return self._queued

    def usable(self) -> bool:
        if self.error is None and not self._pending and monotonic() - self._pipe.heard > _IDLE:
            self._pipe.poll()
        return self.error is None and not self._refusing

    def close(self) -> None:
        self._end(BrokerUnreachable("the producer was closed"))

    def shut(self) -> None:
        self._pipe.shut()

    def fileno(self) -> int:
        return self._pipe._sock.fileno()

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
            batch.waiter.switch(None)

    def _verdict(self, reply: wire.Reply) -> Exception | None:
        word = reply.word
        if word == "INSERTED":
            return None
        words = f"beanstalkd {self.node}: {word}"
        self._refusing = self._refusing or word in ("DRAINING", "OUT_OF_MEMORY")
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
        quiet = now - self._asked
        if self._pending and quiet > self._patience and now - self._oldest() > self._patience:
            self._pipe.poll()  # a hub that was blocked has the answer waiting
            if self._pending and now - self._asked > self._patience:
                self._end(BrokerUnreachable(f"beanstalkd {self.node} gave no answer for {self._patience:g} s"))
        elif not self._pending and quiet > _QUIET:
            self._asked = now
            self._queued += len(wire.LIST_TUBE_USED)
            self._pending.append(None)
            self._pipe.send(wire.LIST_TUBE_USED)

    def _oldest(self) -> float:
        return next((batch.since for batch in self._pending if batch is not None), self._asked)

    def _end(self, error: Exception) -> None:
        if self.error is not None:
            return
        self.error = error
        self._ticker.stop()
        self._ticker.close()
        self._pipe.close()
        waiting, self._pending = [batch for batch in self._pending if batch is not None], deque()
        if waiting:
            get_hub().loop.run_callback(_fail, waiting, self._pipe.sent, error)


def _fail(waiting: Sequence[Batch], sent: int, error: Exception) -> None:
    """In the hub: tell each whether the server can have read the whole of its put (``sent`` bytes were sent)."""
    words = f"{error}; whether the messages are stored is not known, and publishing them again may double them"
    for batch in waiting:
        for end in batch.ends[len(batch.answers) :]:
            batch.answers.append(NotStored(str(error)) if end > sent else PublishError(words, stored=None))
        batch.waiter.switch(None)
