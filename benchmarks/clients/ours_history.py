"""This framework with the setting ``history``: it keeps how each message ended in a file."""

import atexit
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import gevent

from framework import Message, Publisher, handler, history
from framework.engine.supervisor import Supervisor
from framework.handler import registered
from framework.transports import open_transports

_, address = sys.argv[1:]
transports = open_transports([f"nsq://{address}"])


@handler("bench", "bench", concurrency=50, max_in_flight=2500)
def nothing(message: Message) -> None:
    pass


folder = tempfile.mkdtemp()
atexit.register(shutil.rmtree, folder, ignore_errors=True)  # before what writes there at the end
handlers = history.watched(registered(), Path(folder) / "history.db", age=3600.0, size=256 << 20)
supervisor = Supervisor(handlers, transports, publish=Publisher(transports).publish)
gevent.signal_handler(signal.SIGTERM, supervisor.stop)
supervisor.run()
