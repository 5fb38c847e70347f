"""Between a client and a real RocketMQ stands who breaks what the broker says: nothing is lost, and the hub goes on.

What is broken is one answer in some: garbage in its place, a length that is none, half of it and then silence, another number."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Iterator

import gevent
import pytest

from framework.errors import FrameworkError, PublishError
from framework.testing.between import Between
from framework.testing.detour import Detour
from framework.transports import open_transports
from framework.transports.rocketmq.wire.frames import Decoder, Frame, encode
from tests.transports.rocketmq.kit import Kit, Sink, until

pytestmark = [pytest.mark.real, pytest.mark.slow]
MESSAGES = 600
SPOIL = 25
"""One answer in so many is broken."""


def _garbage(frame: Frame, rng: random.Random) -> bytes:
    return rng.randbytes(200)


def _too_long(frame: Frame, rng: random.Random) -> bytes:
    """It announces 12 bytes more than it has: those of the next one are taken for its own."""
    data = encode(frame)
    return struct.pack(">i", len(data) + 8) + data[4:]


def _too_short(frame: Frame, rng: random.Random) -> bytes:
    data = encode(frame)
    return struct.pack(">i", len(data) - 14) + data[4:]


def _huge(frame: Frame, rng: random.Random) -> bytes:
    return struct.pack(">ii", 2**31 - 1, 10)


def _header_too_long(frame: Frame, rng: random.Random) -> bytes:
    data = encode(frame)
    return data[:4] + struct.pack(">i", 0xFFFFFF) + data[8:]


def _another_number(frame: Frame, rng: random.Random) -> bytes:
    frame.opaque += 1_000_000
    return encode(frame)


def _half(frame: Frame, rng: random.Random) -> bytes:
    data = encode(frame)
    return data[: len(data) // 2]


def _body_cut(frame: Frame, rng: random.Random) -> bytes:
    frame.body = frame.body[: len(frame.body) // 2]
    return encode(frame)


def _fields_spoilt(frame: Frame, rng: random.Random) -> bytes:
    """No digits that ``int`` knows, and more of them than it takes."""
    frame.fields = {name: rng.choice(["\u00b2", "9" * 5000, "", "x", "-1"]) for name in frame.fields}
    return encode(frame)


def _nested(frame: Frame, rng: random.Random) -> bytes:
    deep = b'{"code":0,"opaque":%d,"flag":1,"x":' % frame.opaque + b"[" * 50_000 + b"]" * 50_000 + b"}"
    return struct.pack(">ii", len(deep) + 4, len(deep)) + deep


SPOILERS: dict[str, tuple[Callable[[Frame, random.Random], bytes], bool]] = {
    "garbage": (_garbage, False), "too long": (_too_long, False), "too short": (_too_short, False), "huge": (_huge, False),
    "header too long": (_header_too_long, False), "another number": (_another_number, False), "half and silence": (_half, True),
    "half a body": (_body_cut, False), "spoilt fields": (_fields_spoilt, False), "nested": (_nested, False),
}  # fmt: skip
"""Name -> what is sent in place of an answer, and whether nothing is sent on that connection after it."""


class Liar(Between):
    """Stands before a broker."""

    def __init__(self, target: str, spoil: Callable[[Frame, random.Random], bytes], *, silent: bool) -> None:
        self._spoil, self._silent = spoil, silent
        self.lies = 0
        self.honest = True
        self._rng = random.Random(13)
        super().__init__(target)

    def answers(self, server: socket.socket, client: socket.socket) -> None:
        decoder, silent = Decoder(), False
        while data := server.recv(65536):
            for frame in decoder.feed(data):
                if silent:
                    continue
                if self.honest or not frame.is_answer or self._rng.randrange(SPOIL):
                    client.sendall(encode(frame))
                else:
                    self.lies += 1
                    client.sendall(self._spoil(frame, self._rng))
                    silent = self._silent


@pytest.fixture
def lied_to(kit: Kit) -> Iterator[Callable[[str], tuple[Liar, str]]]:
    made: list[Liar | Detour] = []

    def stand(how: str) -> tuple[Liar, str]:
        spoil, silent = SPOILERS[how]
        liar = Liar(kit.server.broker.address, spoil, silent=silent)
        detour = Detour(kit.server.address)
        detour.ways = {kit.server.broker.address: liar.address}
        made.extend((liar, detour))
        return liar, detour.address

    yield stand
    for one in made:
        one.stop()


EACH = [(how, mode) for how in SPOILERS for mode in ("pop", "pull")]
ALWAYS = [("spoilt fields", "pull"), ("half a body", "pull")]
"""The others take six minutes."""


@pytest.mark.parametrize(
    ("how", "mode"),
    [pytest.param(*one, marks=[] if one in ALWAYS else pytest.mark.at_length, id=" by ".join(one)) for one in EACH],
)
def test_whatever_a_broker_answers_nothing_is_lost(
    kit: Kit, lied_to: Callable[[str], tuple[Liar, str]], how: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    liar, address = lied_to(how)
    (transport,) = open_transports([f"rocketmq://{address}?poll=200ms&lease=3s&answer_timeout=1s&mode={mode}"])
    kit.open().ensure(kit.topic, ["billing"])
    sink, over, failures = Sink(), False, []

    def read() -> None:
        """As the engine does it: what ends is made anew."""
        while not over:
            closed = sink.closings
            try:
                connection = transport.connect(kit.server.name, kit.topic, "billing", sink)
            except FrameworkError:
                gevent.sleep(0.05)
                continue
            connection.grant(100)
            while not over and sink.closings == closed:
                gevent.sleep(0.01)
            if over:
                connection.close()
                until(lambda closed=closed: sink.closings > closed)  # type: ignore[misc]

    reading = gevent.spawn(read)
    reading.link_exception(lambda failed: failures.append(failed.exception))
    until(lambda: kit.open().discover(kit.topic, "billing"))
    liar.honest = False
    producer = transport.producer()
    stored: set[bytes] = set()
    for first in range(0, MESSAGES, 20):
        some = [b"%d" % number for number in range(first, first + 20)]
        for body, error in zip(some, producer.publish_each(kit.topic, some, timeout=5.0), strict=True):
            assert error is None or isinstance(error, PublishError)
            if error is None:
                stored.add(body)
    until(lambda: liar.lies >= 3 and len(sink.bodies) > len(stored) // 2, 60.0)
    liar.honest = True
    until(lambda: stored <= sink.bodies.keys() or failures, 60.0)
    over = True
    reading.join()
    print(f"{how}, {mode}: {liar.lies} lies, {len(stored)} stored, 0 lost, {sum(sink.bodies.values()) - len(sink.bodies)} twice, "
          f"{sink.closings} connections")  # fmt: skip
    assert not failures
    assert sink.tally.balance(0) == 0
    assert [record.getMessage() for record in caplog.records if "a fault of this library" in record.getMessage()] == []
    producer.close()
    transport.close()
