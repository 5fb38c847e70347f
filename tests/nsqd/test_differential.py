"""What each command says and when it is refused, as a real nsqd v1.3.0 does: frames, their order, the ending, the counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from framework.testing.servers import Server
from tests.nsqd.differential import (
    FIN,
    HALF,
    ID,
    READY,
    SUB,
    Until,
    identify,
    mpub,
    negotiate,
    on,
    playing,
    pub,
    size,
    sized,
)

pytestmark = pytest.mark.real

ROWS: dict[str, list[Any]] = {
    # framing
    "bad magic": [b"!  V1"],
    "unknown command": [b"HELLO\n"],
    "unknown command with parameters": [b"HELLO world\n"],
    "commands are case sensitive": [b"nop\n"],
    "empty line": [b"\n"],
    "carriage return before the newline": [b"NOP\r\nNOPE\r\n"],
    "binary garbage": [b"\x00\xff\x01\n"],
    "line of 20 kB": [b"A" * 20000 + b"\n"],
    "NOP says nothing": [b"NOP\nNOP\n"],
    "many NOPs say nothing, whatever is between": [b"NOP\n" * 12_000 + b"NOP\r\nNOP x\nNOP\nPUB t\n\0\0\0\1aNOP\nNOP\r\nNOPE\n"],
    # IDENTIFY
    "IDENTIFY without negotiation": [identify(client_id="me")],
    "IDENTIFY with negotiation": [negotiate()],
    "IDENTIFY everything": [negotiate(client_id="a", hostname="b", user_agent="c", heartbeat_interval=1000, output_buffer_size=64,
                                      output_buffer_timeout=25, msg_timeout=1000, sample_rate=10)],
    "IDENTIFY upgrades that are not enabled": [negotiate(tls_v1=True, snappy=True, deflate=True, deflate_level=9)],
    "IDENTIFY minus ones": [negotiate(heartbeat_interval=-1, output_buffer_timeout=-1, output_buffer_size=-1)],
    "IDENTIFY buffer timeout off": [negotiate(output_buffer_timeout=-1)],
    "IDENTIFY zeros": [negotiate(heartbeat_interval=0, output_buffer_timeout=0, output_buffer_size=0, msg_timeout=0)],
    "IDENTIFY unknown fields": [negotiate(short_id="x", nonsense=[1, 2])],
    "IDENTIFY names in any case": [b"IDENTIFY\n" + sized(b'{"Feature_Negotiation": true, "MSG_TIMEOUT": 2000}')],
    "IDENTIFY nulls": [b"IDENTIFY\n" + sized(b'{"feature_negotiation": true, "msg_timeout": null}')],
    "IDENTIFY null": [b"IDENTIFY\n" + sized(b"null")],
    "IDENTIFY twice": [negotiate(msg_timeout=2000) + negotiate(msg_timeout=3000)],
    "IDENTIFY after SUB": [SUB + negotiate()],
    "IDENTIFY heartbeat too short": [negotiate(heartbeat_interval=999)],
    "IDENTIFY heartbeat too long": [negotiate(heartbeat_interval=60001)],
    "IDENTIFY heartbeat -2": [negotiate(heartbeat_interval=-2)],
    "IDENTIFY buffer size too small": [negotiate(output_buffer_size=63)],
    "IDENTIFY buffer size too big": [negotiate(output_buffer_size=65537)],
    "IDENTIFY buffer timeout too short": [negotiate(output_buffer_timeout=24)],
    "IDENTIFY buffer timeout too long": [negotiate(output_buffer_timeout=30001)],
    "IDENTIFY sample rate 100": [negotiate(sample_rate=100)],
    "IDENTIFY sample rate -1": [negotiate(sample_rate=-1)],
    "IDENTIFY msg timeout too short": [negotiate(msg_timeout=999)],
    "IDENTIFY msg timeout too long": [negotiate(msg_timeout=900001)],
    "IDENTIFY msg timeout -1": [negotiate(msg_timeout=-1)],
    "IDENTIFY string for a number": [negotiate(msg_timeout="2000")],
    "IDENTIFY float for a number": [negotiate(msg_timeout=2000.0)],
    "IDENTIFY number for a string": [negotiate(client_id=5)],
    "IDENTIFY number for a boolean": [identify(feature_negotiation=1)],
    "IDENTIFY number out of range": [negotiate(msg_timeout=1 << 64)],
    "IDENTIFY sample rate out of int32": [negotiate(sample_rate=1 << 40)],
    "IDENTIFY array": [b"IDENTIFY\n" + sized(b"[]")],
    "IDENTIFY not JSON": [b"IDENTIFY\n" + sized(b"{nope")],
    "IDENTIFY NaN": [b"IDENTIFY\n" + sized(b'{"msg_timeout": NaN}')],
    "IDENTIFY size 0": [b"IDENTIFY\n" + size(0)],
    "IDENTIFY size -1": [b"IDENTIFY\n" + size(-1)],
    "IDENTIFY too big": [b"IDENTIFY\n" + size(5001)],
    "IDENTIFY cut in the size": [b"IDENTIFY\n\x00\x00", HALF],
    "IDENTIFY cut in the body": [b"IDENTIFY\n" + size(10) + b"{", HALF],
    # AUTH
    "AUTH": [b"AUTH\n" + sized(b"secret")],
    "AUTH with a parameter": [b"AUTH x\n" + sized(b"secret")],
    "AUTH after SUB": [SUB + b"AUTH\n" + sized(b"secret")],
    "AUTH size 0": [b"AUTH\n" + size(0)],
    "AUTH too big": [b"AUTH\n" + size(5001)],
    "AUTH cut in the size": [b"AUTH\n\x00", HALF],
    "AUTH cut in the body": [b"AUTH\n" + size(10) + b"abc", HALF],
    # SUB
    "SUB": [SUB],
    "SUB with more parameters": [b"SUB {t} c d e\n"],
    "SUB without a channel": [b"SUB {t}\n"],
    "SUB alone": [b"SUB\n"],
    "SUB twice": [SUB + SUB],
    "SUB with heartbeats off": [identify(heartbeat_interval=-1) + SUB],
    "SUB bad topic": [b"SUB t:x c\n"],
    "SUB bad channel": [b"SUB {t} c!\n"],
    "SUB empty topic": [b"SUB  c\n"],
    "SUB control characters": [b"SUB a\x01b c\n"],
    "SUB quotes and backslashes": [b'SUB a"b\\c\t c\n'],
    "SUB UTF-8": ["SUB tópico☃ c\n".encode()],
    "SUB no UTF-8": [b"SUB a\xff\xfe c\n"],
    "SUB name of 64": [b"SUB " + b"{t}".ljust(64, b"x")[:61] + b" " + b"c" * 64 + b"\n"],
    "SUB name of 65": [b"SUB {t} " + b"c" * 65 + b"\n"],
    "SUB name of one character": [b"SUB {t} x\n"],
    "SUB only the suffix": [b"SUB {t} #ephemeral\n"],
    "SUB ephemeral": [b"SUB {t}#ephemeral c#ephemeral\n"],
    "SUB suffix in the middle": [b"SUB {t} a#ephemeralb\n"],
    # RDY
    "RDY before SUB": [b"RDY 1\n"],
    "RDY without a count": [SUB + b"RDY\n" + pub(b"a", b"b")],
    "RDY with an empty count": [SUB + b"RDY \n" + pub(b"a")],
    "RDY not a number": [SUB + b"RDY ten\n"],
    "RDY -1": [SUB + b"RDY -1\n"],
    "RDY too many": [SUB + b"RDY 2501\n"],
    "RDY most": [SUB + b"RDY 2500\n"],
    "RDY wraps at 64 bits": [SUB + b"RDY 18446744073709551615\n"],
    "RDY wraps to 0": [SUB + b"RDY 18446744073709551616\n"],
    # FIN, REQ, TOUCH
    "FIN before SUB": [b"FIN " + ID + b"\n"],
    "FIN without an id": [SUB + b"FIN\n"],
    "FIN short id": [SUB + b"FIN 123\n"],
    "FIN long id": [SUB + b"FIN " + ID + b"0\n"],
    "FIN unknown id is not fatal": [SUB + b"FIN " + ID + b"\nFIN " + ID + b"\n"],
    "FIN twice": [READY + pub(b"a"), on(0, b"FIN <id>\nFIN <id>\n")],
    "REQ before SUB": [b"REQ " + ID + b" 0\n"],
    "REQ without a timeout": [SUB + b"REQ " + ID + b"\n"],
    "REQ short id": [SUB + b"REQ 123 0\n"],
    "REQ -1": [SUB + b"REQ " + ID + b" -1\n"],
    "REQ 1.5": [SUB + b"REQ " + ID + b" 1.5\n"],
    "REQ unknown id is not fatal": [SUB + b"REQ " + ID + b" 0\n"],
    "REQ 0 delivers again": [READY + pub(b"a"), on(0, b"REQ <id> 0\n")],
    "REQ empty timeout is 0": [READY + pub(b"a"), on(0, b"REQ <id> \n")],
    "REQ far away is clamped": [READY + pub(b"a"), on(0, b"REQ <id> 99999999999\n")],
    "REQ twice": [READY + pub(b"a"), on(0, b"REQ <id> 60000\nREQ <id> 60000\n")],
    "REQ is to the tail": [SUB + pub(b"1", b"2", b"3") + b"RDY 1\n", on(0, b"REQ <id> 0\n"), on(1, FIN), on(2, FIN)],
    "TOUCH before SUB": [b"TOUCH " + ID + b"\n"],
    "TOUCH without an id": [SUB + b"TOUCH\n"],
    "TOUCH short id": [SUB + b"TOUCH 1\n"],
    "TOUCH unknown id is not fatal": [SUB + b"TOUCH " + ID + b"\n"],
    "TOUCH": [READY + pub(b"a"), on(0, b"TOUCH <id>\nFIN <id>\nTOUCH <id>\n")],
    # CLS
    "CLS": [SUB + b"CLS\n"],
    "CLS before SUB": [b"CLS\n"],
    "CLS twice": [SUB + b"CLS\nCLS\n"],
    "CLS then RDY is ignored": [SUB + b"CLS\nRDY 1\nRDY nonsense\n"],
    "CLS then FIN": [READY + pub(b"a"), Until(3), b"CLS\n", on(0, b"FIN <id>\nFIN <id>\n")],
    "CLS then REQ": [READY + pub(b"a"), Until(3), b"CLS\n", on(0, b"REQ <id> 0\n")],
    "CLS then PUB": [SUB + b"CLS\n" + pub(b"a")],
    "CLS then SUB": [SUB + b"CLS\n" + SUB],
    # PUB
    "PUB": [pub(b"a")],
    "PUB before and after SUB": [pub(b"a") + READY + pub(b"b")],
    "PUB without a topic": [b"PUB\n"],
    "PUB bad topic": [b"PUB a*b\n" + sized(b"x")],
    "PUB empty topic": [b"PUB \n" + sized(b"x")],
    "PUB with more parameters": [b"PUB {t} more\n" + sized(b"x")],
    "PUB empty": [b"PUB {t}\n" + size(0)],
    "PUB size -5": [b"PUB {t}\n" + size(-5)],
    "PUB of the maximum": [READY + pub(b"x" * 1000)],
    "PUB too big": [b"PUB {t}\n" + size(1001)],
    "PUB cut in the size": [b"PUB {t}\n\x00\x00\x00", HALF],
    "PUB cut in the body": [b"PUB {t}\n" + size(5) + b"abc", HALF],
    "PUB good then bad": [pub(b"a", b"b") + b"PUB {t}\n" + size(0)],
    "PUB binary body": [READY + pub(bytes(range(256)))],
    "PUB body like a command": [READY + pub(b"FIN 0123456789abcdef\n")],
    # DPUB
    "DPUB 0": [READY + b"DPUB {t} 0\n" + sized(b"a")],
    "DPUB without a timeout": [b"DPUB {t}\n" + sized(b"a")],
    "DPUB bad topic": [b"DPUB a*b 1\n" + sized(b"a")],
    "DPUB -1": [b"DPUB {t} -1\n" + sized(b"a")],
    "DPUB not a number": [b"DPUB {t} soon\n" + sized(b"a")],
    "DPUB out of range": [b"DPUB {t} 3600001\n" + sized(b"a")],
    "DPUB wraps": [b"DPUB {t} 18446744073709551615\n" + sized(b"a")],
    "DPUB the most": [b"DPUB {t} 3600000\n" + sized(b"a")],
    "DPUB empty": [b"DPUB {t} 1\n" + size(0)],
    "DPUB too big": [b"DPUB {t} 1\n" + size(1001)],
    "DPUB cut in the size": [b"DPUB {t} 1\n\x00", HALF],
    "DPUB cut in the body": [b"DPUB {t} 1\n" + size(5) + b"abc", HALF],
    # MPUB
    "MPUB": [READY + mpub(b"a", b"b", b"c")],
    "MPUB without a topic": [b"MPUB\n"],
    "MPUB bad topic": [b"MPUB a*b\n"],
    "MPUB size too small is not looked at": [READY + mpub(b"a", b"b", said=1) + pub(b"c")],
    "MPUB size off by four": [READY + mpub(b"a", b"b", said=10) + pub(b"c")],
    "MPUB size too big is not looked at": [READY + mpub(b"a", said=1000) + pub(b"c")],
    "MPUB size 0": [mpub(b"a", said=0)],
    "MPUB size -1": [mpub(b"a", said=-1)],
    "MPUB size over the maximum": [mpub(b"a", said=5001)],
    "MPUB count 0": [b"MPUB {t}\n" + size(4) + size(0)],
    "MPUB count -1": [b"MPUB {t}\n" + size(4) + size(-1)],
    "MPUB count over the maximum": [b"MPUB {t}\n" + size(4) + size(1000)],
    "MPUB an empty message": [mpub(b"a", b"")],
    "MPUB a message too big": [mpub(b"a", b"x" * 1001)],
    "MPUB a negative size": [b"MPUB {t}\n" + size(20) + size(1) + size(-7)],
    "MPUB nothing of a bad one is queued": [READY + mpub(b"a", b"")],
    "MPUB cut in the size": [b"MPUB {t}\n\x00", HALF],
    "MPUB cut in the count": [b"MPUB {t}\n" + size(10) + b"\x00", HALF],
    "MPUB cut in a size": [b"MPUB {t}\n" + size(20) + size(2) + sized(b"ab") + b"\x00", HALF],
    "MPUB cut in a body": [b"MPUB {t}\n" + size(20) + size(2) + size(5) + b"ab", HALF],
    # many at once
    "a whole session in one write": [negotiate(heartbeat_interval=2000) + READY + pub(b"a") + mpub(b"b", b"c")],
    "RDY is not counted down": [SUB + b"RDY 1\n" + pub(b"1", b"2", b"3"), on(0, FIN), on(1, FIN), on(2, FIN)],
    "RDY 0 stops": [SUB + b"RDY 1\n" + pub(b"1", b"2"), on(0, b"RDY 0\nFIN <id>\n")],
    "RDY lowered recalls nothing": [SUB + b"RDY 3\n" + pub(b"1", b"2", b"3", b"4"), on(2, b"RDY 1\nFIN <id>\n")],
}  # fmt: skip


@pytest.fixture(scope="module")
def played(pair: tuple[Server, Server], request: pytest.FixtureRequest) -> Iterator[dict[str, Future[tuple[Any, Any]]]]:
    with playing(pair, ROWS, request) as answers:
        yield answers


@pytest.mark.parametrize("name", ROWS)
def test_answers_as_nsqd_does(played: dict[str, Future[tuple[Any, Any]]], name: str) -> None:
    theirs, ours = played[name].result()
    assert ours == theirs


def test_ids_are_sixteen_hexadecimal_characters_and_grow(shared: Server, talk: Callable[..., Any]) -> None:
    client = talk(shared)
    client.send((READY + mpub(b"a", b"b", b"c")).replace(b"{t}", b"ids"))
    ids = [message_id for message_id, _, _ in client.get(3)]
    assert all(len(one) == 16 and one == b"%016x" % int(one, 16) for one in ids)
    assert ids == sorted(set(ids))


def test_only_two_consumers_are_let_into_a_channel(pair: tuple[Server, Server], talk: Callable[..., Any]) -> None:
    said = []
    for server in pair:
        for _ in range(2):
            talk(server).send(b"SUB limited c\n")
        third = talk(server)
        while server.channel_stats("limited", "c").get("client_count") != 2:
            third.read(0.01)
        third.send(b"SUB limited c\n")
        third.until(lambda third=third: third.closed)
        said.append((third.replies, third.closed))
    assert said[0] == said[1]
    assert said[1][0] == [b"E_SUB_FAILED SUB failed consumers for limited:c exceeds limit of 2"]
