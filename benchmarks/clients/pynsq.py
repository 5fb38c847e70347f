"""pynsq, as its documentation shows it."""

import sys

import nsq  # type: ignore[import-not-found]
import tornado.ioloop  # type: ignore[import-not-found]

BODY = b"x" * 200
TOPIC = "bench#ephemeral"
job, address = sys.argv[1:]


def consume() -> None:
    nsq.Reader(
        message_handler=lambda message: True, nsqd_tcp_addresses=[address], topic="bench", channel="bench", max_in_flight=2500
    )
    nsq.run()


def _publish(at_once: int, command: str, what: object) -> None:
    writer = nsq.Writer([address])
    send = getattr(writer, command)

    def again(connection: object, data: object) -> None:
        send(TOPIC, what, callback=again)

    def begin() -> None:
        if writer.conns:
            for _ in range(at_once):
                again(None, None)
        else:
            tornado.ioloop.IOLoop.current().call_later(0.05, begin)

    tornado.ioloop.IOLoop.current().call_later(0.05, begin)
    nsq.run()


def sync() -> None:
    _publish(1, "pub", BODY)


def pipelined() -> None:
    _publish(100, "pub", BODY)


def mpub() -> None:
    _publish(1, "mpub", [BODY] * 500)


globals()[job]()
