"""Every error that a real nsqd can be made to say has its class and nsqd's words, and says whether the connection is over."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from framework.errors import (
    AccessDenied,
    BrokerError,
    CommandRefused,
    LeaseOver,
    NegotiationRefused,
    RequestRefused,
    TryLater,
)
from framework.testing import servers
from framework.transports.nsq import wire
from framework.transports.nsq.wire import identify, mpub, parse_error
from tests.conftest import starting

pytestmark = pytest.mark.real

ID = b"0123456789abcdef"
SUB = b"SUB orders billing\n"
UPGRADES = {"feature_negotiation": True, "snappy": True, "deflate": True}


def size(number: int) -> bytes:
    return struct.pack(">i", number)


FATAL = {
    "no magic": (b"GET ", NegotiationRefused, "E_BAD_PROTOCOL"),
    "unknown command": (b"HELLO\n", CommandRefused, "E_INVALID invalid command HELLO"),
    "IDENTIFY after SUB": (SUB + identify({}), CommandRefused, "E_INVALID cannot IDENTIFY in current state"),
    "IDENTIFY size": (b"IDENTIFY\n" + size(0), NegotiationRefused, "E_BAD_BODY IDENTIFY invalid body size 0"),
    "IDENTIFY too big": (b"IDENTIFY\n" + size(9999), NegotiationRefused, "E_BAD_BODY IDENTIFY body too big 9999 > 5000"),
    "IDENTIFY not JSON": (b"IDENTIFY\n" + size(1) + b"{", NegotiationRefused, "E_BAD_BODY IDENTIFY failed to decode JSON body"),
    "heartbeat": (
        identify({"heartbeat_interval": 5}),
        NegotiationRefused,
        "E_BAD_BODY IDENTIFY heartbeat interval (5) is invalid",
    ),
    "two compressions": (
        identify(UPGRADES),
        NegotiationRefused,
        "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression",
    ),
    "AUTH without one": (wire.auth(b"s"), AccessDenied, "E_AUTH_DISABLED AUTH disabled"),
    "AUTH size": (b"AUTH\n" + size(0), AccessDenied, "E_BAD_BODY AUTH invalid body size 0"),
    "AUTH parameters": (b"AUTH x\n", CommandRefused, "E_INVALID AUTH invalid number of parameters"),
    "SUB parameters": (b"SUB orders\n", CommandRefused, "E_INVALID SUB insufficient number of parameters"),
    "SUB topic": (b"SUB o:s b\n", RequestRefused, 'E_BAD_TOPIC SUB topic name "o:s" is not valid'),
    "SUB channel": (b"SUB o b:b\n", RequestRefused, 'E_BAD_CHANNEL SUB channel name "b:b" is not valid'),
    "SUB without heartbeats": (
        identify({"heartbeat_interval": -1}) + SUB,
        CommandRefused,
        "E_INVALID cannot SUB with heartbeats disabled",
    ),
    "RDY before SUB": (b"RDY 1\n", CommandRefused, "E_INVALID cannot RDY in current state"),
    "RDY out of range": (SUB + b"RDY 2501\n", CommandRefused, "E_INVALID RDY count 2501 out of range 0-2500"),
    "RDY no number": (SUB + b"RDY x\n", CommandRefused, "E_INVALID RDY could not parse count x"),
    "FIN before SUB": (wire.fin([ID]), CommandRefused, "E_INVALID cannot FIN in current state"),
    "FIN without id": (SUB + b"FIN\n", CommandRefused, "E_INVALID FIN insufficient number of params"),
    "FIN of no id": (SUB + b"FIN x\n", CommandRefused, "E_INVALID invalid message ID"),
    "REQ without time": (SUB + b"REQ " + ID + b" x\n", CommandRefused, "E_INVALID REQ could not parse timeout x"),
    "CLS before SUB": (b"CLS\n", CommandRefused, "E_INVALID cannot CLS in current state"),
    "PUB topic": (wire.pub("o:s", b"x"), RequestRefused, 'E_BAD_TOPIC PUB topic name "o:s" is not valid'),
    "PUB empty": (wire.pub("orders", b""), RequestRefused, "E_BAD_MESSAGE PUB invalid message body size 0"),
    "PUB too big": (wire.pub("orders", b"x" * 1001), RequestRefused, "E_BAD_MESSAGE PUB message too big 1001 > 1000"),
    "DPUB too late": (wire.dpub("orders", 3601, b"x"), CommandRefused, "E_INVALID DPUB timeout 3601000 out of range 0-3600000"),
    "DPUB empty": (wire.dpub("orders", 1, b""), RequestRefused, "E_BAD_MESSAGE DPUB invalid message body size 0"),
    "MPUB topic": (mpub("o:s", [b"x"], [1]), RequestRefused, 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "o:s" is not valid'),
    "MPUB too big": (mpub("orders", [b"x" * 900] * 6, [900] * 6), RequestRefused, "E_BAD_BODY MPUB body too big 5428 > 5000"),
    "MPUB message too big": (
        mpub("orders", [b"x" * 1001], [1001]),
        RequestRefused,
        "E_BAD_MESSAGE MPUB message too big 1001 > 1000",
    ),
    "MPUB empty message": (
        mpub("orders", [b"x", b""], [1, 0]),
        RequestRefused,
        "E_BAD_MESSAGE MPUB invalid message(1) body size 0",
    ),
    "MPUB of none": (mpub("orders", [], []), RequestRefused, "E_BAD_BODY MPUB invalid message count 0"),
}

NOT_FATAL = {
    "FIN": wire.fin([ID]),
    "REQ": wire.req(ID, 0),
    "TOUCH": wire.touch([ID]),
}


@pytest.fixture(scope="module")
def nsqd(tmp_path_factory) -> Iterator[servers.Server]:
    def make(*flags: str) -> servers.Server:
        return servers.real_nsqd(tmp_path_factory.mktemp("nsqd"), *flags)

    with starting(make) as start:
        yield start("--max-msg-size=1000", "--max-body-size=5000")


class Peer:
    """A bare socket to an nsqd."""

    def __init__(self, nsqd: servers.Server, data: bytes) -> None:
        self.sock = socket.create_connection(("127.0.0.1", nsqd.tcp_port), timeout=20)
        self.sock.sendall(data)
        self.decoder = wire.Decoder()

    def error(self) -> BrokerError:
        while data := self.sock.recv(65536):
            for frame in self.decoder.feed(data)[1]:
                if isinstance(frame, BrokerError):
                    return frame
        raise AssertionError("nsqd closed without an error")

    def ended(self) -> bool:
        try:
            return not self.sock.recv(65536)
        except ConnectionResetError:
            return True

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


@pytest.mark.parametrize("row", FATAL.values(), ids=FATAL.keys())
def test_a_fatal_error_has_its_class_and_nsqds_words_and_ends_the_connection(nsqd, row):
    data, kind, words = row
    with Peer(nsqd, data if data.startswith(b"GET") else wire.MAGIC + data) as peer:
        error = peer.error()
        assert type(error) is kind
        assert f"{error.code} {error.words}".strip() == words
        assert str(error).startswith(words)
        assert error.fatal
        assert peer.ended()


@pytest.mark.parametrize("name", NOT_FATAL)
def test_an_error_about_a_message_has_its_class_and_leaves_the_connection_open(nsqd, name):
    with Peer(nsqd, wire.MAGIC + SUB + NOT_FATAL[name]) as peer:
        for _ in range(2):
            error = peer.error()
            assert type(error) is LeaseOver
            assert (error.code, error.fatal) == (f"E_{name}_FAILED", False)
            assert error.words == f"{name} {ID.decode()} failed ID not in flight"
            assert wire.refused_id(error) == ID
            peer.sock.sendall(NOT_FATAL[name])


def test_a_channel_that_is_full_is_tried_later(start_nsqd, kit):
    nsqd = start_nsqd("--max-channel-consumers=1")
    kit.subscribe(nsqd.address, kit.Recorder())
    with pytest.raises(TryLater, match="E_SUB_FAILED SUB failed consumers for orders:billing exceeds limit of 1"):
        kit.subscribe(nsqd.address, kit.Recorder())


SAID_BY_A_SERVER_IN_TROUBLE = [
    (b"E_SUB_FAILED SUB failed exiting", TryLater),
    (b"E_SUB_FAILED SUB failed to deleted topic/channel", TryLater),
    (b"E_PUB_FAILED PUB failed exiting", TryLater),
    (b"E_MPUB_FAILED MPUB failed exiting", TryLater),
    (b"E_DPUB_FAILED DPUB failed exiting", TryLater),
    (b"E_AUTH_ERROR AUTH error because", AccessDenied),
    (b"E_IDENTIFY_FAILED IDENTIFY failed because", NegotiationRefused),
    (b"E_BAD_BODY MPUB failed to read message count", RequestRefused),
    (b"E_FIN_FAILEDX or so", BrokerError),
    (b"E_NEW words", BrokerError),
]


@pytest.mark.parametrize(("data", "kind"), SAID_BY_A_SERVER_IN_TROUBLE)
def test_what_only_a_server_in_trouble_says_has_its_class_too(data, kind):
    error = parse_error(data)
    assert (type(error), error.fatal, f"{error.code} {error.words}") == (kind, True, data.decode())


def test_every_code_of_the_table_is_a_broker_error_and_three_are_not_fatal():
    errors = [parse_error(start.encode()) for start, _, _ in wire.ERRORS]
    assert [type(error) for error in errors] == [kind for _, kind, _ in wire.ERRORS]
    assert {error.code for error in errors if not error.fatal} == wire.NOT_FATAL
