"""This framework, as the benchmarks run it."""

import signal
import sys
import time

import gevent

from benchmarks.measure import BODY
from framework import Message, Publisher, handler
from framework.engine.supervisor import Supervisor
from framework.handler import registered
from framework.transports import open_transports

job, address = sys.argv[1:]
_SCHEMES = {"reserve": "beanstalkd", "pull": "nats", "store": "nats", "respond": "nats-route"}
transports = open_transports([f"{_SCHEMES.get(job, 'nsq')}://{one}" for one in address.split(",")])
publisher = Publisher(transports)
TOPIC = "bench#ephemeral"


def consume() -> None:
    @handler("bench", "bench", concurrency=50, max_in_flight=2500)
    def nothing(message: Message) -> None:
        pass

    _run()


pull = consume


def latency() -> None:
    handler("bench", "bench")(_note)
    _run()


def crowd() -> None:
    handler("bench", "bench", concurrency=1, max_in_flight=1)(_note)
    _run()


def _note(message: Message) -> None:
    print((time.time_ns() - int(message.body)) / 1e6)


def reserve() -> None:
    @handler("bench", "bench", concurrency=100, max_in_flight=100)
    def nothing(message: Message) -> None:
        pass

    _run()


def respond() -> None:
    """A handler is told of no one who waits for a reply; the peer that brought the message is."""

    @handler("bench", "bench", concurrency=50, max_in_flight=2500)
    def answer(message: Message) -> None:
        message.connection.rescuable.send(message.reply, b"", message.body)  # type: ignore[attr-defined]

    _run()


def sync() -> None:
    while True:
        publisher.publish(TOPIC, BODY)


def pipelined() -> None:
    """Its window is of 100."""
    while True:
        publisher.publish_each(TOPIC, [BODY] * 10_000)


def store() -> None:
    while True:
        publisher.publish_each("bench", [BODY] * 10_000)


def mpub() -> None:
    while True:
        publisher.publish_many(TOPIC, [BODY] * 500)


def _run() -> None:
    supervisor = Supervisor(registered(), transports, publish=publisher.publish)
    gevent.signal_handler(signal.SIGTERM, supervisor.stop)
    supervisor.run()


globals()[job]()
