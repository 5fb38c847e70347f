"""NSQ as a ``contract.Producer``: bodies checked before anything is sent, nodes tried in turn until a deadline.

Each native thread has its own hub, and so its own connection here; greenlets of one thread share one. It stays with
the node it found until that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from framework import names
from framework.bodies import Bodies, which
from framework.errors import BadMessage, PublishError
from framework.headers import NONE, Headers
from framework.transports.failover import Failover
from framework.transports.nsq import wire
from framework.transports.nsq.delays import LongestDelays
from framework.transports.nsq.dial import CONNECT_TIMEOUT
from framework.transports.nsq.publish_link import PublishLink
from framework.transports.nsq.urls import Options
from framework.transports.per_thread import PerThread, raise_first

DEADLINE = 30.0
_BYTES = {bytes}


class NsqProducer:
    """Publishes to any of ``nodes()``. Safe to share between greenlets and between native threads.

    ``deadline``: the timeout of a publish that names none.
    """

    def __init__(
        self,
        nodes: Callable[[], set[str]],
        options: Options,
        *,
        deadline: float = DEADLINE,
        delays: LongestDelays | None = None,
    ) -> None:
        self._options = options
        self._delays = delays or LongestDelays(options)
        self._deadline = deadline
        self._publishing = PerThread(nodes, self._dial, broker="nsqd", nowhere="the nsqlookupds know of no nsqd")

    def publish(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> None:  # fmt: skip
        """Return when nsqd has answered OK for all of ``bodies``; ``delay`` in seconds. Leases are the consumers'.

        Raises BadName, BadMessage (nothing was sent), PublishError.
        """
        names.check("topic", topic)
        seconds = self._deadline if timeout is None else timeout
        only = bodies[0] if len(bodies) == 1 else b""
        if type(only) is bytes and 0 < len(only) <= self._options.max_msg_size and 0 <= delay <= self._delays.longest:
            self._publishing.here().store(_command(topic, only, delay), seconds)  # most publishes: at a third of the price below
            return
        bodies = self._checked(topic, bodies, delay)
        failover = self._publishing.here()
        if delay:  # there is no deferred MPUB
            raise_first(failover.store_each([_command(topic, body, delay) for body in bodies], seconds))
        else:
            _store_many(failover, self._joined(topic, bodies), len(bodies), seconds)

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> list[PublishError | None]:  # fmt: skip
        """One PUB (DPUB with a delay) for each; what is known of those that nsqd did not answer with OK.

        Raises BadName, BadMessage (nothing was sent), PublishError when the producer is closed.
        """
        names.check("topic", topic)
        bodies = self._checked(topic, bodies, delay)
        seconds = self._deadline if timeout is None else timeout
        return self._publishing.here().store_each([_command(topic, body, delay) for body in bodies], seconds)

    def close(self) -> None:
        """Close every connection; publishes that wait for an answer fail."""
        self._publishing.close()

    def _dial(self, node: str, timeout: float) -> PublishLink:
        return PublishLink.to(node, self._options, timeout=min(CONNECT_TIMEOUT, timeout), delays=self._delays)

    def _checked(self, topic: str, bodies: Sequence[bytes], delay: float) -> Bodies:
        """Its own: a list that changed while it waits would no longer fit the sizes."""
        longest = self._delays.longest
        if not 0 <= delay <= longest:
            raise BadMessage(f"topic {topic!r}: a delay of {delay!r} s is out of range, nsqd takes 0 to {longest:g} s")
        largest = self._options.max_msg_size
        if not isinstance(bodies, Bodies):
            if isinstance(bodies, (bytes, str)) or not set(map(type, bodies)) <= _BYTES:
                raise _not_bytes(topic, bodies)
            bodies = Bodies(bodies)
            if not all(bodies.sizes):
                raise _bad_size(topic, bodies, largest)
        if bodies.total > largest and max(bodies.sizes) > largest:  # the maximum costs more than all the rest
            raise _bad_size(topic, bodies, largest)
        return bodies

    def _joined(self, topic: str, bodies: Bodies) -> Iterator[tuple[bytes, int]]:
        for part in split(bodies.sizes, self._options.max_body_size):
            yield wire.mpub(topic, bodies[part], bodies.sizes[part]), part.stop - part.start


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


def _store_many(failover: Failover[bytes], commands: Iterable[tuple[bytes, int]], total: int, timeout: float) -> None:
    """Store each command within ``timeout`` seconds; beside it is how many of the ``total`` messages it holds."""
    done = 0
    for command, count in commands:
        try:
            failover.store(command, timeout)
        except PublishError as error:
            if done == 0:
                raise
            raise PublishError(f"{done} of {total} messages are stored, then: {error}", stored=None) from error
        done += count


def _not_bytes(topic: str, bodies: Sequence[bytes]) -> BadMessage:
    if isinstance(bodies, (bytes, str)):
        return BadMessage(f"topic {topic!r}: publish takes a list of bodies; write [body]")
    at = next(i for i, body in enumerate(bodies) if type(body) is not bytes)
    return BadMessage(f"topic {topic!r}: message {at + 1} of {len(bodies)} is {type(bodies[at]).__name__}, not bytes; encode it")


def _bad_size(topic: str, bodies: Sequence[bytes], largest: int) -> BadMessage:
    at = next(i for i, body in enumerate(bodies) if not 0 < len(body) <= largest)
    name = f"topic {topic!r}: {which(bodies, at + 1)}"
    if not bodies[at]:
        return BadMessage(f"{name} is empty, which nsqd does not take; give it a body or leave it out")
    return BadMessage(f"{name} has {len(bodies[at])} bytes; nsqd takes up to {largest} (its --max-msg-size): make it smaller")
