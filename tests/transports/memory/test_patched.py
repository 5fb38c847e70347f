"""The broker in memory in a process that gevent has patched, as `workers run` is: greenlets and native threads publish alike."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROCESS = """
import sys
if sys.argv[1] == "patched":
    from gevent import monkey
    monkey.patch_all()
import gevent, json
from framework import Publisher
from framework.engine.supervisor import Supervisor
from framework.handler import make_spec
from framework.transports import open_transports

transports = open_transports(["memory://"])
publisher = Publisher(transports)
seen = []

def handle(message):
    seen.append(message.body.decode())

def publish(name):
    for number in range(1000):
        publisher.publish("orders", f"{name} {number}")

supervisor = Supervisor([make_spec(handle, "orders", "billing", {})], transports, publish=publisher.publish)
running = gevent.spawn(supervisor.run)
publishing = [gevent.get_hub().threadpool.spawn(publish, name) for name in range(3)] + [gevent.spawn(publish, 3)]
with gevent.Timeout(40):
    gevent.joinall(publishing)
    while len(seen) < 4000:
        gevent.sleep(0.01)
supervisor.stop()
running.get()
print(json.dumps([len(set(seen)), supervisor.ledgers["orders/billing"].as_dict()]))
"""


@pytest.mark.parametrize("kind", ["patched", "unpatched"])
def test_greenlets_and_native_threads_publish_to_a_handler_of_the_main_thread(kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROCESS, kind], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    different, ledger = json.loads(done.stdout)
    assert different == 4000
    assert ledger == {"received": 4000, "finished": 4000, "requeued": 0, "dead": 0, "lease_lost": 0}
