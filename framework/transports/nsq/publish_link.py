"""One publishing connection to an nsqd: commands of many greenlets pipelined, its OKs matched to them in order.

It lives on one hub. The producer decides whether to try again, and where.
Source: TCP protocol specification, PUB, MPUB and DPUB; nsqd answers in order and closes after any error here.
"""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from gevent.hub import Waiter, get_hub

from framework.errors import BrokerError, BrokerUnreachable, MessageRefused, ProtocolError, PublishError
from framework.hubs import call_on_hub
from framework.transports.looks import Looks
from framework.transports.nsq import wire
from framework.transports.nsq.asking import NOBODY, REFILL, UNKNOWN, Asker, NoAnswer, Pending, Run, fail
from framework.transports.nsq.delays import LongestDelays
from framework.transports.nsq.dial import Line, dial
from framework.transports.nsq.stream import begun
from framework.transports.nsq.urls import Options
from framework.transports.publish_link import NotStored, another
from framework.transports.stream import RECV_SIZE

_READ, _WRITE = 1, 2
_TICK = 1.0
_DOUBT = 1.0
"""Seconds without a word, while an answer is owed, after which nothing more is sent there."""
_IDLE = 0.01  # seconds after which a look at the socket comes before trusting it: one recv
_BODY_REFUSED = ("E_BAD_MESSAGE", "E_BAD_BODY")
_FAILED = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"})


_EMPTY = wire.pub("workers", b"")
_ANSWER = len(wire.encode_frame(wire.FRAME_RESPONSE, wire.OK))


class PublishLink:
    """Made by ``to``. Of no more use once ``error`` is set."""

    def __init__(self, line: Line, heartbeat: float, delays: LongestDelays | None = None) -> None:
        self.node = line.node
        self.error: Exception | None = None
        self.silent: Callable[[], None] = _nothing
        self.elsewhere: Callable[[], bool] = another  # a refusal ends the connection in any case
        self._feed = line.decoder.feed
        self._sock = line.release()
        self._silence = 2 * heartbeat
        self._delays = delays
        self._last_read = self._answered = monotonic()
        self._doubted = 0.0  # when; what was read later takes it back
        self._pending: deque[Pending] = deque()
        self._queue: list[bytes] = []
        self._queued = 0  # bytes of commands ever queued, and ever handed to the socket
        self._sent = 0
        self._tail = b""
        self._tail_at = 0
        self._flush_due = False
        self._runs = 0
        self._low_water = 1
        self._start_watchers(line.events)

    @classmethod
    def to(cls, node: str, options: Options, *, timeout: float, delays: LongestDelays | None = None) -> PublishLink:
        """Dial ``node``; blocks. ``delays`` learns from what is refused. Raises BrokerUnreachable, BrokerError, ProtocolError."""
        with dial(node, options, timeout=timeout) as line:
            return cls(line, options.heartbeat, delays)

    def _start_watchers(self, frames: list[bytes | BrokerError]) -> None:
        loop = get_hub().loop
        self._run_callback = loop.run_callback
        self._reader = loop.io(self._sock.fileno(), _READ)
        self._writer = loop.io(self._sock.fileno(), _WRITE)
        self._reader.start(self._guarded, self._read)
        self._looks = Looks(_TICK, partial(self._guarded, self._tick), partial(self._guarded, self._on_alarm))
        self._run_callback(self._guarded, self._take, frames)

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Every callback comes through here: the hub would print an exception, and publishers wait for ever."""
        try:
            self._flush_due = True  # at the end of this; so that what is published meanwhile schedules none
            work(*arguments)
            self._flush()
            self._doze()
        except Exception as error:
            self._end(error)

    # --- publishers ----------------------------------------------------------------------------------------

    def ask(self, command: bytes, until: float) -> Exception | None:
        """Send a PUB, MPUB or DPUB and wait for its answer: None is OK; else NotStored or PublishError."""
        if self.error is not None:
            return NotStored(str(self.error))
        alone = not self._pending
        waiter = Waiter()
        self.push((command,), waiter, until)
        if not self._flush_due:
            if alone:
                self._flush_now()  # nothing gathers where one publisher waits for each answer
            else:
                self._flush_due = True
                self._run_callback(self._guarded, _nothing)
        outcome: Exception | None = waiter.get()
        return outcome

    def ask_each(self, commands: Sequence[bytes], timeout: float) -> list[Exception | None]:
        """As ``ask`` for each of ``commands``, with up to ``WINDOW`` of them under way; the answers in their order.
        ``timeout``: seconds that each may take."""
        run = Run(self, commands, timeout)
        self._runs += 1
        try:
            if self.error is None:
                self._guarded(run.send)
            return run.wait()
        finally:
            self._runs -= 1
            self._doze()

    def push(self, commands: Sequence[bytes], asker: Asker, until: float) -> None:
        """Queue ``commands`` for the next flush."""
        now = monotonic()
        for command in commands:
            self._queue.append(command)
            self._queued += len(command)
            self._pending.append((asker, self._queued, now, until))
        if until < self._looks.next:
            self._looks.at(until)

    def usable(self) -> bool:
        """Whether it can be used.

        Where the hub does not run between publishes (a plain thread), heartbeats and the end of the stream wait unseen in the
        socket: they are read first.
        """
        silent = monotonic() - self._last_read
        if self.error is None and silent > _IDLE:
            if not self._pending:
                self._guarded(self._read_all)
            elif silent > _TICK:  # a handler blocked the hub, perhaps; and answers are given on the hub only
                call_on_hub(partial(self._guarded, self._read_all))
        if self.error is not None or self._doubted > self._last_read:
            return False
        # What nobody waits for any more is answered next; whatever else is heard, no other answer comes before that one.
        return not self._pending or self._pending[0][0] is not NOBODY

    def prove(self, until: float) -> Exception | None:
        """As ``publish_link.PublishLink``: a PUB without a body is refused before nsqd looks for its topic."""
        outcome = self.ask(_EMPTY, until)
        return None if isinstance(outcome, PublishError) and outcome.stored is False else outcome

    def close(self) -> None:
        """Close it; publishes that wait for an answer get NotStored or PublishError."""
        self._end(BrokerUnreachable("the producer was closed"))

    def shut(self) -> None:
        """End it from another native thread, whose hub then sees the end of the stream."""
        try:
            self._sock.shutdown(2)
        except OSError:
            pass

    def fileno(self) -> int:
        return self._sock.fileno()

    # --- reading -------------------------------------------------------------------------------------------

    def _read(self) -> bool:
        """One recv; whether there was anything. Raises BrokerUnreachable, which ends the connection (``_guarded``)."""
        try:
            data = self._sock.recv(RECV_SIZE)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._broken(str(error)) from error
        if not data:
            raise self._broken("it was closed")
        self._last_read = monotonic()
        messages, frames = self._feed(data)
        if messages:
            raise ProtocolError(f"nsqd {self.node} sent a message to a connection that did not subscribe")
        self._take(frames)
        return True

    def _read_all(self) -> None:
        while self._read():
            pass
        self._last_read = monotonic()

    def _doze(self) -> None:
        """While many answers are awaited, wake up for ``REFILL`` of them: nsqd sends each by itself, and to wake up
        for each is most of what it costs. The ticker reads as well, so that heartbeats are answered meanwhile."""
        low = _ANSWER * min(REFILL, len(self._pending)) if self._runs and self._pending else 1
        if low != self._low_water and self.error is None:
            self._low_water = low
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low)

    def _take(self, frames: list[bytes | BrokerError]) -> None:
        for frame in frames:
            if frame == wire.OK and self._pending:
                self._answered = self._last_read
                self._pending.popleft()[0].switch(None)
            elif frame == wire.HEARTBEAT:
                self._queue.append(wire.NOP)
                self._queued += len(wire.NOP)
            elif isinstance(frame, BrokerError):
                self._refused(frame)
            elif self.error is None:
                raise ProtocolError(f"nsqd {self.node} sent {frame[:80]!r}, which nothing asked for")

    def _refused(self, error: BrokerError) -> None:
        """It answers the oldest command; nsqd reads none after it, so those are certainly not stored."""
        refused = self._pending.popleft()[0] if self._pending else None
        self._end(error, reached=0)
        if refused is not None:
            verdict = self._verdict(error)
            verdict.__cause__ = error  # its class tells what a person could do
            refused.switch(verdict)

    def _verdict(self, error: BrokerError) -> Exception:
        if error.code in _FAILED:
            if error.words.endswith("exiting"):
                return NotStored(f"nsqd {self.node}: {error}")
            return PublishError(f"nsqd {self.node}: {error}", stored=None)  # an MPUB may be stored in part
        if error.code in _BODY_REFUSED:
            return MessageRefused(f"nsqd {self.node}: {error}", stored=False)
        if self._delays is not None and (words := self._delays.heard(self.node, error)):
            return MessageRefused(words, stored=False)
        return PublishError(f"nsqd {self.node}: {error}", stored=False)

    def _tick(self) -> None:
        while self._read():  # a hub that was blocked, and one that dozes, has heartbeats waiting
            pass
        now = monotonic()
        if now - self._last_read > self._silence:
            self._end(self._broken(f"it was silent for {self._silence:g} s"))
        self._looks.ticked(now)
        self._look()

    # --- answers that do not come --------------------------------------------------------------------------

    def _on_alarm(self) -> None:
        while self._read():  # a hub that was blocked has answers waiting
            pass
        self._look()

    def _look(self) -> None:
        """A publisher that has waited for long enough waits no more. An answer that comes later is dropped."""
        now = monotonic()
        over = [i for i, each in enumerate(self._pending) if each[3] <= now]
        if self._pending:
            silence = now - max(self._last_read, self._pending[0][2])
            if silence >= _DOUBT or (over and self._answered <= self._pending[over[0]][2]):
                self._doubted = now
                self.silent()
            if silence >= _DOUBT and (self._stuck(over) or not any(now < each[3] < math.inf for each in self._pending)):
                self._end(self._broken(f"it gave no answer for {silence:.1f} s"))
                return
        self._give_up(over)
        self._looks.looked(min((each[3] for each in self._pending), default=math.inf))

    def _stuck(self, over: Sequence[int]) -> bool:
        """Whether the socket has not taken the last of these: it must not do so after its publisher was told."""
        return bool(over) and self._pending[over[-1]][1] > self._sent + begun(self._sock)

    def _give_up(self, over: Sequence[int]) -> None:
        waiting = [self._pending[i] for i in over]
        for i, (_, end, since, _) in zip(over, waiting, strict=True):
            self._pending[i] = (NOBODY, end, since, math.inf)
        for asker, _, since, until in waiting:
            asker.switch(NoAnswer(f"nsqd {self.node} gave no answer for {until - since:.1f} s; {UNKNOWN}", stored=None))

    # --- sending -------------------------------------------------------------------------------------------

    def _flush_now(self) -> None:
        """The short way of ``_guarded``: with one answer awaited there is nothing to doze for."""
        try:
            self._flush()
        except Exception as error:
            self._end(error)

    def _flush(self) -> None:
        self._flush_due = False
        if self._tail:
            self._send()
        if not self._tail and self._queue:
            self._tail = b"".join(self._queue) if len(self._queue) > 1 else self._queue[0]
            self._queue.clear()
            self._send()

    def _send(self) -> None:
        if self.error is not None:
            return
        try:
            sent = self._sock.send(memoryview(self._tail)[self._tail_at :] if self._tail_at else self._tail)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._read_all()  # an error frame says more than EPIPE
            self._end(self._broken(str(error)))
            return
        self._sent += sent
        self._tail_at += sent
        if self._tail_at == len(self._tail):
            self._tail, self._tail_at = b"", 0
            if self._writer.active:
                self._writer.stop()
        elif not self._writer.active:
            self._writer.start(self._guarded, _nothing)

    # --- the end -------------------------------------------------------------------------------------------

    def _broken(self, why: str) -> BrokerUnreachable:
        return BrokerUnreachable(f"the connection to nsqd {self.node} broke: {why}")

    def _end(self, error: Exception, *, reached: int | None = None) -> None:
        """``reached``: how many bytes of commands the peer may have read; all that were sent or begun, unless it is known."""
        if self.error is not None:
            return
        self.error = error
        if reached is None:
            reached = self._sent + begun(self._sock)
        for watcher in (self._reader, self._writer, self._looks):
            watcher.close()
        self._sock.close()
        self._queue.clear()
        self._tail = b""
        waiting, self._pending = self._pending, deque()
        if waiting:
            self._run_callback(fail, waiting, reached, error)


def _nothing() -> None:
    """For callbacks that only flush."""
