"""A worker process for cases in which a process must die; it is patched, as ``workers run`` is, before it imports this.

Not in the suite of conformance: each of hundreds of processes would import pytest.

It appends "attempts body" to the journal for each call before that returns, and prints its ledger when it is told to stop.
Modes: ``work``: two milliseconds a message; ``die``: the call kills the process, and max_attempts is ``MAX_ATTEMPTS``;
``starve``: from the first call on, for ``STARVES`` seconds, the process can open no file and no socket; ``publish``: it
publishes ``PUBLISHED`` messages, notes each in the journal when its publish returned, and kills itself when the last one did.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import NoReturn

import gevent

from framework.engine.supervisor import Supervisor
from framework.handler import HandlerSpec
from framework.message import Message
from framework.publisher import Publisher
from framework.transports import open_transports

MAX_ATTEMPTS = 3
STARVES = 1.2
PUBLISHED = 60
START = f"from framework.cli.patching import patch; patch(); import sys; from {__name__} import main; main(*sys.argv[1:])"
"""For ``python -c``, followed by the arguments of ``main``."""


def main(url: str, topic: str, channel: str, journal: str, mode: str) -> None:
    """Run until SIGTERM."""
    out = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    if mode == "publish":
        publish_and_die(url, topic, out)
    starving = mode == "starve"

    def handle(message: Message) -> None:
        nonlocal starving
        if starving:
            starving = False
            starve()
        gevent.sleep(0.002)
        os.write(out, b"%d %s\n" % (message.attempts, message.body))
        if mode == "die":
            os.kill(os.getpid(), signal.SIGKILL)

    limit = MAX_ATTEMPTS if mode == "die" else 0
    spec = HandlerSpec(topic, channel, handle, None, 20, 200, 30.0, limit, 0, 0.0)
    transports = open_transports([url])
    publisher = Publisher(transports)
    supervisor = Supervisor([spec], transports, publish=publisher.publish)
    gevent.signal_handler(signal.SIGTERM, supervisor.stop)
    supervisor.run()
    publisher.close()
    for transport in transports:
        transport.close()
    sys.stdout.write(json.dumps(supervisor.ledgers[spec.name].as_dict()))


def starve() -> None:
    """Let nothing more be opened for a while; what is open stays."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    gevent.spawn_later(STARVES, resource.setrlimit, resource.RLIMIT_NOFILE, before)


def publish_and_die(url: str, topic: str, out: int) -> NoReturn:
    """Nothing of it may be left for a thread, a greenlet or an exit handler to send."""
    publisher = Publisher(open_transports([url]))
    for number in range(PUBLISHED):
        publisher.publish(topic, b"message %d" % number)
        os.write(out, b"1 message %d\n" % number)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process survived SIGKILL")
