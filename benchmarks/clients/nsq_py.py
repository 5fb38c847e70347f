"""nsq-py, as fast as its public classes go, and without the log line that it writes for every RDY."""

import logging
import select
import sys
import time

from nsq.client import Client  # type: ignore[import-not-found]
from nsq.connection import Connection  # type: ignore[import-not-found]
from nsq.reader import Reader  # type: ignore[import-not-found]

logging.getLogger("nsq").setLevel(logging.WARNING)
BODY = b"x" * 200
TOPIC = b"bench#ephemeral"
job, address = sys.argv[1:]
host, port = address.split(":")


def consume() -> None:
    for message in Reader(b"bench", b"bench", nsqd_tcp_addresses=[address], max_in_flight=2500):
        message.fin()


def latency() -> None:
    for message in Reader(b"bench", b"bench", nsqd_tcp_addresses=[address], max_in_flight=100):
        print((time.time_ns() - int(message.body)) / 1e6)
        message.fin()


def sync() -> None:
    client = Client(nsqd_tcp_addresses=[address])
    while True:
        client.pub(TOPIC, BODY)


def pipelined() -> None:
    """Its Client waits for every answer; a Connection, told to, does not. Its read() does not wait at all: without
    the select it would spin, at more than twice the CPU and half the rate."""
    connection = Connection(host, int(port))
    connection.setblocking(0)
    waiting = 0
    while True:
        while waiting < 100:
            connection.pub(TOPIC, BODY)
            waiting += 1
        while connection.pending():
            connection.flush()
        select.select([connection], [], [])
        waiting -= len(connection.read())


def mpub() -> None:
    client = Client(nsqd_tcp_addresses=[address])
    while True:
        client.mpub(TOPIC, *([BODY] * 500))


globals()[job]()
