"""A process that may open no more files: what needs one fails, says which limit to raise, and ends nothing else."""

from __future__ import annotations

import errno
import json
import subprocess
import sys

import pytest

from framework.errors import BrokerUnreachable, FrameworkError
from framework.testing.servers import ROOT
from framework.transports import open_transports

CALLS_IN_THREADS = """
from framework.cli.patching import patch; patch()
import json, resource, time
import gevent
from framework.engine.supervisor import Supervisor
from framework.handler import HandlerSpec
from framework.transports import memory, open_transports

def handle(message):
    time.sleep(0.01)  # gevent's, for which a thread needs a hub

broker = memory.named("few")
broker.declare("orders", "billing")
spec = HandlerSpec("orders", "billing", handle, None, 4, 8, 30.0, 0, 0, 0.0, slots="thread")
supervisor = Supervisor([spec], open_transports([broker.url]), publish=print)
running = gevent.spawn(supervisor.run)
ledger = supervisor.ledgers["orders/billing"]
while not supervisor.ready:
    gevent.sleep(0.01)
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
broker.store("orders", [b"x"] * 8, 0, None)
while ledger.requeued < 8:
    gevent.sleep(0.01)
resource.setrlimit(resource.RLIMIT_NOFILE, before)
while ledger.finished < 8:
    gevent.sleep(0.01)
supervisor.stop()
running.get(timeout=30)
print(json.dumps(ledger.as_dict()))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors as Linux does")
def test_a_call_in_a_thread_that_cannot_have_a_hub_fails_and_the_worker_lives():
    """libev would end the process (SIGABRT), with all that it has in flight."""
    done = subprocess.run(
        [sys.executable, "-c", CALLS_IN_THREADS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ended = json.loads(done.stdout)
    assert (ended["finished"], ended["dead"], ended["lease_lost"]) == (8, 0, 0)
    assert "OSError: [Errno 24] Too many open files: raise the limit of open files (ulimit -n)" in done.stderr


@pytest.mark.parametrize("url", ["nsq://", "nsq+lookupd://", "beanstalkd://", "nats://", "rocketmq://"])
def test_a_broker_that_no_file_is_left_for_is_no_riddle(url, monkeypatch):
    def starved(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("gevent.socket.create_connection", starved)
    monkeypatch.setattr("gevent.socket.socket.connect", starved)
    (transport,) = open_transports([f"{url}127.0.0.1:1"])
    with pytest.raises(FrameworkError) as raised:
        for node in transport.discover("orders", "billing"):
            transport.connect(node, "orders", "billing", None)
    transport.close()
    assert isinstance(raised.value, BrokerUnreachable)
    assert "Too many open files; raise the limit of open files (ulimit -n)" in str(raised.value)
