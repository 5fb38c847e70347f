"""NSQ as a ``contract.Producer``: bodies checked before anything is sent, nodes tried in turn until a deadline.

Each native thread has its own hub, and so its own connection here; greenlets of one thread share one. It stays with
the node it found until that fails.
"""

from __future__ import annotations

import itertools
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import monotonic

import gevent
from gevent import monkey
from gevent.lock import BoundedSemaphore

from framework import names
from framework.errors import BadMessage, BrokerUnreachable, FrameworkError, PublishError
from framework.transports.nsq import wire
from framework.transports.nsq.connection import MAX_DEFER
from framework.transports.nsq.dial import CONNECT_TIMEOUT
from framework.transports.nsq.link import Link
from framework.transports.nsq.urls import Options

DEADLINE = 30.0
_BYTES = {bytes}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
# the patched ones are of a greenlet, not of a thread
_ThreadLocal = monkey.get_original("threading", "local")
_thread_ident = monkey.get_original("_thread", "get_ident")


class NsqProducer:
    """Publishes to any of ``nodes()``. Safe to share between greenlets and between native threads.

    ``deadline``: seconds after which a publish that found no nsqd gives up, and that an answer may take.
    """

    def __init__(self, nodes: Callable[[], set[str]], options: Options, *, deadline: float = DEADLINE) -> None:
        self._nodes = nodes
        self._options = options
        self._deadline = deadline
        self._here = _ThreadLocal()
        self._outlets: weakref.WeakSet[Outlet] = weakref.WeakSet()
        self._closed = False

    def publish(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None, lease: float | None = None
    ) -> None:
        """Return when nsqd has answered OK for all of ``bodies``; ``delay`` in seconds, up to 3600. Leases are the consumers'.

        Raises BadName, BadMessage (nothing was sent), PublishError.
        """
        names.check("topic", topic)
        sizes = self._check(topic, bodies, delay)
        if self._closed:
            raise PublishError("the producer is closed: make a new one")
        outlet = self._outlet()
        if len(bodies) == 1:
            outlet.store(_command(topic, bodies[0], delay))
        elif delay:  # there is no deferred MPUB
            _raise_first(outlet.store_each([_command(topic, body, delay) for body in bodies]))
        else:
            bodies = list(bodies)  # its own: a list that changed while it waits would no longer fit the sizes
            _store_many(outlet, self._joined(topic, bodies, sizes), len(bodies))

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None, lease: float | None = None
    ) -> list[PublishError | None]:
        """One PUB (DPUB with a delay) for each; what is known of those that nsqd did not answer with OK.

        Raises BadName, BadMessage (nothing was sent), PublishError when the producer is closed.
        """
        names.check("topic", topic)
        self._check(topic, bodies, delay)
        if self._closed:
            raise PublishError("the producer is closed: make a new one")
        return self._outlet().store_each([_command(topic, body, delay) for body in bodies])

    def close(self) -> None:
        """Close every connection; publishes that wait for an answer fail."""
        self._closed = True
        for outlet in list(self._outlets):
            outlet.close()

    def _outlet(self) -> Outlet:
        outlet: Outlet | None = getattr(self._here, "outlet", None)
        if outlet is None:
            outlet = self._here.outlet = Outlet(self._nodes, self._options, self._deadline)
            self._outlets.add(outlet)
        return outlet

    def _check(self, topic: str, bodies: Sequence[bytes], delay: float) -> list[int]:
        """The size of each body."""
        if not 0 <= delay <= MAX_DEFER:
            raise BadMessage(f"topic {topic!r}: a delay of {delay!r} s is out of range, nsqd takes 0 to {MAX_DEFER:g} s")
        largest = self._options.max_msg_size
        if len(bodies) == 1 and type(bodies[0]) is bytes and 0 < len(bodies[0]) <= largest:
            return [len(bodies[0])]  # most publishes: at a third of the price of what follows
        if isinstance(bodies, (bytes, str)) or not set(map(type, bodies)) <= _BYTES:
            raise _not_bytes(topic, bodies)
        sizes = list(map(len, bodies))
        if not all(sizes) or max(sizes, default=0) > largest:
            raise _bad_size(topic, bodies, largest)
        return sizes

    def _joined(self, topic: str, bodies: Sequence[bytes], sizes: list[int]) -> Iterator[tuple[bytes, int]]:
        for part in split(sizes, self._options.max_body_size):
            yield wire.mpub(topic, bodies[part], sizes[part]), part.stop - part.start


def split(sizes: Sequence[int], max_body: int) -> Iterator[slice]:
    """Messages of these ``sizes``, in order, as parts whose MPUB bodies are of ``max_body`` bytes at most (one
    alone may be more)."""
    start, total = 0, wire.mpub_size(())
    if wire.mpub_size(sizes) > max_body:
        for i, size in enumerate(sizes):
            cost = wire.SIZE_FIELD + size
            if total + cost > max_body and i > start:
                yield slice(start, i)
                start, total = i, wire.mpub_size(())
            total += cost
    if sizes:
        yield slice(start, len(sizes))


def _command(topic: str, body: bytes, delay: float) -> bytes:
    return wire.dpub(topic, delay, body) if delay else wire.pub(topic, body)


def _raise_first(answers: Sequence[PublishError | None]) -> None:
    """The error of a request for several messages, if one of them was not stored."""
    error = next(filter(None, answers), None)
    if error is None:
        return
    stored = answers.count(None)
    if not stored and all(answer and answer.stored is False for answer in answers):
        raise error
    raise PublishError(f"{stored} of {len(answers)} messages are stored; of the others: {error}", stored=None) from error


def _store_many(outlet: Outlet, commands: Iterable[tuple[bytes, int]], total: int) -> None:
    """Store each command; beside it is how many of the ``total`` messages it holds."""
    done = 0
    for command, count in commands:
        try:
            outlet.store(command)
        except PublishError as error:
            if done == 0:
                raise
            raise PublishError(f"{done} of {total} messages are stored, then: {error}", stored=None) from error
        done += count


class Outlet:
    """What one native thread publishes through: one Link at a time, found again when it breaks."""

    def __init__(self, nodes: Callable[[], set[str]], options: Options, deadline: float) -> None:
        self._nodes = nodes
        self._options = options
        self._deadline = deadline
        self._link: Link | None = None
        self._dialing = BoundedSemaphore(1)
        self._failed_node = ""
        self._thread = _thread_ident()
        self._closed = False

    def store(self, command: bytes) -> None:
        """Return when an nsqd has stored it. What was certainly not stored is tried again until the deadline."""
        until = monotonic() + self._deadline
        attempt = 0
        while True:
            try:
                outcome = self._usable_link(until).ask(command)
            except FrameworkError as error:
                outcome = error
            if outcome is None:
                return
            if isinstance(outcome, PublishError):
                raise outcome
            self._pause_after(outcome, attempt, until)
            attempt += 1

    def store_each(self, commands: Sequence[bytes]) -> list[PublishError | None]:
        """As ``store`` for each, many of them under way; the errors are returned in their place. A command that had to be
        sent again comes after those that had not."""
        until = monotonic() + self._deadline
        answers = self._try_each(commands, until)
        for attempt in itertools.count():
            left = [i for i, each in enumerate(answers) if each is not None and not isinstance(each, PublishError)]
            if not left:
                break
            try:
                self._pause_after(answers[left[0]], attempt, until)
                again = self._try_each([commands[i] for i in left], until)
            except PublishError as error:
                again = [error] * len(left)
            for i, each in zip(left, again, strict=True):
                answers[i] = each
        return [each for each in answers if each is None or isinstance(each, PublishError)]  # which all are now

    def _try_each(self, commands: Sequence[bytes], until: float) -> list[Exception | None]:
        try:
            return self._usable_link(until).ask_each(commands)
        except FrameworkError as error:
            return [error] * len(commands)

    def _pause_after(self, failure: Exception | None, attempt: int, until: float) -> None:
        """Before the next try. Raises PublishError when there is no time for one."""
        pause = _pause(attempt)
        if self._closed or monotonic() + pause > until:
            raise PublishError(f"no nsqd took the messages within {self._deadline:g} s: {failure}", stored=False)
        gevent.sleep(pause)

    def _usable_link(self, until: float) -> Link:
        """The link there is, or a new one: one greenlet dials, the others wait for it."""
        if (link := self._link) is not None and link.usable():
            return link
        if not self._dialing.acquire(timeout=max(0.0, until - monotonic())):
            raise BrokerUnreachable("no nsqd could be reached in time")
        try:
            if self._link is None or not self._link.usable():
                self._failed_node = self._link.node if self._link is not None else ""
                self._link = None
                self._link = self._dial(until)
            return self._link
        finally:
            self._dialing.release()

    def _dial(self, until: float) -> Link:
        """Try every node once, in random order, the one that has just failed last."""
        nodes = sorted(self._nodes(), key=lambda node: (node == self._failed_node, random.random()))
        failures = ["the nsqlookupds know of no nsqd"] if not nodes else []
        for node in nodes:
            left = until - monotonic()
            if left <= 0 or self._closed:
                break
            try:
                timeout = min(CONNECT_TIMEOUT, left)
                return Link.to(node, self._options, patience=self._deadline, timeout=timeout)
            except FrameworkError as error:
                failures.append(str(error))
        raise BrokerUnreachable("; ".join(failures) or "the producer was closed")

    def close(self) -> None:
        """From another native thread the socket is only shut: its watchers belong to the hub over there."""
        self._closed = True
        if self._link is not None:
            if _thread_ident() == self._thread:
                self._link.close()
            else:
                self._link.shut()

    def __del__(self) -> None:
        """The thread has ended, or the producer was dropped, and nothing else would close the socket."""
        if not sys.is_finalizing():
            self.close()


def _pause(attempt: int) -> float:
    """Seconds, with full jitter: many publishers that lost one nsqd do not come back at once."""
    return random.uniform(0, min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10)))


def _not_bytes(topic: str, bodies: Sequence[bytes]) -> BadMessage:
    if isinstance(bodies, (bytes, str)):
        return BadMessage(f"topic {topic!r}: publish takes a list of bodies; write [body]")
    at = next(i for i, body in enumerate(bodies) if type(body) is not bytes)
    return BadMessage(f"topic {topic!r}: message {at + 1} of {len(bodies)} is {type(bodies[at]).__name__}, not bytes; encode it")


def _bad_size(topic: str, bodies: Sequence[bytes], largest: int) -> BadMessage:
    at = next(i for i, body in enumerate(bodies) if not 0 < len(body) <= largest)
    which = f"topic {topic!r}: message {at + 1} of {len(bodies)}"
    if not bodies[at]:
        return BadMessage(f"{which} is empty, which nsqd does not take; give it a body or leave it out")
    return BadMessage(f"{which} has {len(bodies[at])} bytes; nsqd takes up to {largest} (its --max-msg-size): make it smaller")
