"""RocketMQ as a ``contract.Producer``: bodies checked before anything is sent, masters tried in turn until a deadline.

Each native thread has its own hub, and so its own connection here; greenlets of one thread share one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from framework import names
from framework.errors import BadMessage, PublishError
from framework.headers import NONE, Headers
from framework.transports.checked import check_bodies
from framework.transports.per_thread import PerThread, raise_first
from framework.transports.rocketmq.commands import Command, Commands
from framework.transports.rocketmq.publish_link import PublishLink
from framework.transports.rocketmq.requests import MAX_DELAY
from framework.transports.rocketmq.routes import NOWHERE
from framework.transports.rocketmq.urls import Names, Options
from framework.transports.rocketmq.wire import properties

DEADLINE = 30.0


class RocketProducer:
    """Publishes to the masters that ``nodes`` names. Safe to share between greenlets and between native threads."""

    def __init__(
        self, nodes: Callable[[], Collection[str]], dial: Callable[[str, float], PublishLink], names: Names, options: Options,
        *, deadline: float = DEADLINE,
    ) -> None:  # fmt: skip
        """``dial(node, timeout)`` makes a link. ``deadline``: the timeout of a publish that names none."""
        self._names = names
        self._options = options
        self._deadline = deadline
        self._commands = Commands(options.max_body)
        self._publishing: PerThread[Command] = PerThread(nodes, dial, broker="RocketMQ", nowhere=NOWHERE)

    def publish(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> None:  # fmt: skip
        """Return when a broker has answered for all of ``bodies``; ``delay`` in seconds. Leases are the consumers'.

        Several without a delay go in as few requests as hold them, all messages of each to one queue.

        Raises BadName, BadMessage (nothing was sent), PublishError.
        """
        if len(bodies) < 2 or delay:
            raise_first(self.publish_each(topic, bodies, delay=delay, timeout=timeout, headers=headers))
            return
        self._check(topic, bodies, delay, headers)
        commands = self._commands.together(topic, self._names.mapped(topic), bodies, headers)
        answers = self._publishing.here().store_each(commands, self._deadline if timeout is None else timeout)
        if any(answers):
            raise_first([answer for command, answer in zip(commands, answers, strict=True) for _ in range(command.count)])

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> list[PublishError | None]:  # fmt: skip
        """As ``publish``, with an answer for each of ``bodies``.

        Raises BadName, BadMessage (nothing was sent), PublishError when the producer is closed.
        """
        self._check(topic, bodies, delay, headers)
        commands = self._commands.singles(topic, self._names.mapped(topic), bodies, headers, delay)
        return self._publishing.here().store_each(commands, self._deadline if timeout is None else timeout)

    def publish_headed(
        self, topic: str, bodies: Sequence[bytes], headers: Sequence[Headers], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None,
    ) -> None:  # fmt: skip
        """``contract.HeadsEach``. A request for each, many under way at once, as the broker chooses a queue for each."""
        self._check(topic, bodies, delay, NONE)
        commands: list[Command] = []
        for body, given in zip(bodies, headers, strict=True):
            _check_headers(topic, given)
            commands += self._commands.singles(topic, self._names.mapped(topic), [body], given, delay)
        raise_first(self._publishing.here().store_each(commands, self._deadline if timeout is None else timeout))

    def close(self) -> None:
        """Close every connection; publishes that wait for an answer fail."""
        self._publishing.close()

    def _check(self, topic: str, bodies: Sequence[bytes], delay: float, headers: Headers) -> None:
        names.check("topic", topic)
        self._names.accept(topic, ())
        if not 0 <= delay <= MAX_DELAY:
            raise BadMessage(f"topic {topic!r}: a delay of {delay!r} s is out of range, 0 to {MAX_DELAY:g} s are taken")
        _check_headers(topic, headers)
        limit = "(its maxMessageSize; max_body= in the broker URL, if yours takes more)"
        check_bodies(topic, bodies, self._options.max_body, f"RocketMQ takes up to {self._options.max_body} {limit}")


def _check_headers(topic: str, headers: Headers) -> None:
    for name in headers:
        if properties.is_reserved(name):
            raise BadMessage(f"topic {topic!r}: RocketMQ uses the header {name!r} itself; give it another name")
    size = len(properties.encode(properties.of_headers(headers)).encode()) if headers else 0
    if size > properties.MAX_PROPERTIES:
        raise BadMessage(
            f"topic {topic!r}: headers of {size} bytes, and RocketMQ takes {properties.MAX_PROPERTIES}: make them smaller"
        )
