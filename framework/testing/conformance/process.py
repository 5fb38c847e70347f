"""A worker process for cases in which a process must die; it is patched, as ``workers run`` is, before it imports this.

It appends "attempts body" to the journal for each call before that returns, and prints its ledger when it is told to stop.
Modes: ``work``: two milliseconds a message; ``die``: the call kills the process, and max_attempts is ``MAX_ATTEMPTS``.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import gevent

from framework.engine.supervisor import Supervisor
from framework.handler import HandlerSpec
from framework.message import Message
from framework.publisher import Publisher
from framework.transports import open_transports

MAX_ATTEMPTS = 3
START = f"from gevent import monkey; monkey.patch_all(); import sys; from {__name__} import main; main(*sys.argv[1:])"
"""For ``python -c``, followed by the arguments of ``main``."""


def main(url: str, topic: str, channel: str, journal: str, mode: str) -> None:
    """Run until SIGTERM."""
    out = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def handle(message: Message) -> None:
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
    sys.stdout.write(json.dumps(supervisor.ledgers[spec.name].as_dict()))
