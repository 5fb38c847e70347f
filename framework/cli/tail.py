"""``workers tail``: a look at a topic's messages through a channel of its own, which takes none from other channels."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable

import click

from framework import names
from framework.cli import channels, options
from framework.cli.brokers import chosen, reach
from framework.cli.exit_codes import as_text
from framework.cli.signals import stopping
from framework.engine.supervisor import Supervisor
from framework.errors import Retry
from framework.handler import Options, make_spec
from framework.message import Message
from framework.publisher import Publisher
from framework.settings import Settings

_PREFETCH = 100


@click.command(epilog="\b\nExit codes:\n" + as_text())
@click.argument("topic")
@click.option("--channel", help="Read this channel instead: what it prints, its other readers do not get.")
@click.option("-n", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@click.option(
    "--http-address", multiple=True, metavar="HOST:PORT", help="Where nsqd answers HTTP, if not on the port after its TCP port."
)
@options.settings("brokers", "data_path", "connect_deadline")
def command(topic: str, channel: str | None, count: int | None, http_address: tuple[str, ...], settings: Settings) -> int:
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
        channels.require_one(chosen(settings), topic, http_address)
    publisher = Publisher(transports)
    with stopping(tail) as signals:
        tail.run(Supervisor([spec], transports, publish=publisher.publish, connect_deadline=settings.connect_deadline))
    publisher.close()
    return signals.exit_code


class Tail:
    """Prints until it has printed ``count`` messages, nobody reads its output any more, or it is stopped."""

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
