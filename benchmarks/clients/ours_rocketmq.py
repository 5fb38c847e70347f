"""This framework on RocketMQ, as the benchmarks run it."""

import signal
import sys
import time

import gevent

from benchmarks.measure import BODY
from framework import Message, Publisher, handler
from framework.engine.supervisor import Supervisor
from framework.handler import registered
from framework.transports import open_transports
from framework.transports.rocketmq import publish_link

job, address, topic = sys.argv[1:]
transports = open_transports([f"rocketmq://{address}" + ("?mode=pull" if job == "pull" else "")])
publisher = Publisher(transports)


def pop() -> None:
    @handler(topic, "bench", concurrency=50, max_in_flight=2500)
    def nothing(message: Message) -> None:
        pass

    _run()


pull = pop


def latency() -> None:
    @handler(topic, "bench")
    def note(message: Message) -> None:
        print((time.time_ns() - int(message.body)) / 1e6)

    _run()


def one() -> None:
    while True:
        publisher.publish(topic, BODY)


def many() -> None:
    publish_link.WINDOW = 64
    while True:
        publisher.publish_each(topic, [BODY] * 10_000)


def batch() -> None:
    while True:
        publisher.publish_many(topic, [BODY] * 100)


def _run() -> None:
    supervisor = Supervisor(registered(), transports, publish=publisher.publish)
    gevent.signal_handler(signal.SIGTERM, supervisor.stop)
    supervisor.run()


globals()[job]()
