"""``workers tail``: a look at a topic's messages through a channel of its own, which takes none from other channels."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Sequence

import click

from framework import names
from framework.cli import options
from framework.cli.brokers import reach
from framework.cli.exit_codes import as_text
from framework.cli.signals import stopping
from framework.engine.supervisor import Supervisor
from framework.errors import BrokerUnreachable, Retry, WrongUse
from framework.handler import Options, make_spec
from framework.message import Message
from framework.publisher import Publisher
from framework.settings import Settings
from framework.transports.contract import Transport

_PREFETCH = 100


@click.command(epilog="\b\nExit codes:\n" + as_text())
@click.argument("topic")
@click.option("--channel", help="Read this channel instead: what it prints, its other readers do not get.")
@click.option("-n", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@options.settings("brokers", "data_path", "connect_deadline")
def command(topic: str, channel: str | None, count: int | None, settings: Settings) -> int:
    """Print the bodies of TOPIC's messages as they come, a line each, until SIGINT, SIGTERM or N messages.

    Reads through an ephemeral channel of its own, so that every other channel still gets each message. A topic without
    a channel is refused: NSQ would give all that waits in it to this one, and throw it away with it.
    """
    names.check("topic", topic)
    tail = Tail(count)
    options_: Options = {"concurrency": 1, "max_in_flight": min(count or _PREFETCH, _PREFETCH), "max_attempts": 0}
    spec = make_spec(tail.printer(), topic, channel or f"tail{secrets.token_hex(4)}{names.EPHEMERAL}", options_)
    transports = reach(settings)
    if channel is None:
        _require_channel(topic, transports)
    publisher = Publisher(transports)
    with stopping(tail) as signals:
        tail.run(Supervisor([spec], transports, publish=publisher.publish, connect_deadline=settings.connect_deadline))
    publisher.close()
    return signals.exit_code


def _require_channel(topic: str, transports: Sequence[Transport]) -> None:
    """Raises WrongUse when ``topic`` has no channel, and when that cannot be told."""
    silent = []
    for transport in transports:
        try:
            if transport.channels(topic):
                return
        except BrokerUnreachable as error:
            silent.append(str(error))
    if silent:
        raise WrongUse(
            f"it cannot be told whether topic {topic!r} has a channel ({'; '.join(silent)}): name the channel to read with "
            "--channel, or nsqd's HTTP port in the URL, as nsq://host:4150?http_port=4151"
        )
    raise WrongUse(
        f"topic {topic!r} has no channel yet: the first one gets all that waits there, and a tail's is thrown away; "
        "start its handlers first, or name a channel to keep with --channel"
    )


class Tail:
    """Prints until it has printed ``count`` messages, its output is not read any more, or it is stopped."""

    def __init__(self, count: int | None) -> None:
        self._left = count
        self._supervisor: Supervisor | None = None

    def run(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        supervisor.run()

    def stop(self, now: bool = False) -> None:
        if self._supervisor is not None:
            self._supervisor.stop(now)

    def printer(self) -> Callable[[Message], None]:
        """The handler's function."""

        def show(message: Message) -> None:
            if self._left == 0:
                raise Retry("enough were printed", delay=0)
            self._print(message.body)
            if self._left:
                self._left -= 1
            if self._left == 0:
                self.stop()

        return show

    def _print(self, body: bytes) -> None:
        try:
            sys.stdout.buffer.write(body + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # `workers tail topic | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at exit
            self._left = 0
