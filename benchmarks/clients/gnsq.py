"""gnsq, as its documentation shows it. (-P keeps this folder, and so this file's name, off the import path.)"""

import sys
import time

import gevent
from gnsq import Consumer, Producer  # type: ignore[import-not-found]

BODY = b"x" * 200
TOPIC = "bench#ephemeral"
job, address = sys.argv[1:]


def consume() -> None:
    consumer = Consumer("bench", "bench", [address], max_in_flight=2500)

    @consumer.on_message.connect
    def nothing(consumer, message):  # type: ignore[no-untyped-def]
        pass

    consumer.start()


def latency() -> None:
    consumer = Consumer("bench", "bench", [address], max_in_flight=100)

    @consumer.on_message.connect
    def note(consumer, message):  # type: ignore[no-untyped-def]
        print((time.time_ns() - int(message.body)) / 1e6)

    consumer.start()


def _producer() -> Producer:
    producer = Producer([address])
    producer.start()
    return producer


def sync() -> None:
    _sync(_producer())


def _sync(producer: Producer) -> None:
    while True:
        producer.publish(TOPIC, BODY)


def pipelined() -> None:
    producer = _producer()
    gevent.joinall([gevent.spawn(_sync, producer) for _ in range(100)])


def mpub() -> None:
    producer = _producer()
    while True:
        producer.multipublish(TOPIC, [BODY] * 500)


globals()[job]()
