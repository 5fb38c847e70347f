"""Every command in every state, every kind of name and of number, and what is looked at first: as a real nsqd v1.3.0."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from framework.testing.servers import Server
from tests.nsqd.differential import ID, READY, SUB, identify, mpub, negotiate, on, playing, pub, size, sized

pytestmark = pytest.mark.real


STATES: dict[str, list[Any]] = {
    "at the start": [b""],
    "after IDENTIFY": [negotiate()],
    "after IDENTIFY without heartbeats": [identify(heartbeat_interval=-1)],
    "when subscribed": [SUB],
    "with one in flight": [READY + pub(b"held")],
    "when closing": [READY + pub(b"held"), b"CLS\n"],
}
COMMANDS = {
    "IDENTIFY": negotiate(),
    "AUTH": b"AUTH\n" + sized(b"secret"),
    "SUB": SUB,
    "RDY": b"RDY 1\n",
    "FIN": b"FIN " + ID + b"\n",
    "REQ": b"REQ " + ID + b" 0\n",
    "TOUCH": b"TOUCH " + ID + b"\n",
    "CLS": b"CLS\n",
    "NOP": b"NOP\n",
    "PUB": pub(b"x"),
    "MPUB": mpub(b"x", b"y"),
    "DPUB": b"DPUB {t} 60000\n" + sized(b"x"),
}
NAMES = {
    "empty": b"",
    "65 long": b"n" * 65,
    "a suffix alone": b"#ephemeral",
    "two suffixes": b"n#ephemeral#ephemeral",
    "another suffix": b"n#temporary",
    "a colon": b"n:n",
    "a slash": b"n/n",
    "UTF-8": "ñ".encode(),
    "no UTF-8": b"n\xffn",
    "a quote": b'n"n',
    "a backslash": b"n\\n",
    "NUL": b"n\x00n",
    "DEL": b"n\x7fn",
    "a tab": b"n\tn",
    "a wide space": "n\u00a0n".encode(),
    "a sign beyond the BMP": "n\U0001f600".encode(),
}
NAMED = {
    "SUB topic": (b"SUB ", b" c\n"),
    "SUB channel": (b"SUB {t} ", b"\n"),
    "PUB": (b"PUB ", b"\n" + sized(b"x")),
    "MPUB": (b"MPUB ", b"\n" + sized(size(1) + sized(b"x"))),
    "DPUB": (b"DPUB ", b" 1\n" + sized(b"x")),
}
NUMBERS = {
    "00": b"00",
    "007": b"007",
    "+1": b"+1",
    "-0": b"-0",
    "1e3": b"1e3",
    "0x10": b"0x10",
    "1_0": b"1_0",
    "a digit of another script": "\u0661".encode(),
    "superscript two": "\u00b2".encode(),
    "over 32 bits": b"4294967297",
    "2^63": b"9223372036854775808",
    "2^64 + 1": b"18446744073709551617",
    "forty digits": b"1" * 40,
    "letters": b"many",
    "a tab behind": b"1\t",
}
COUNTED: dict[str, list[Any]] = {
    "RDY": [SUB + b"RDY <n>\n" + pub(b"a")],
    "REQ": [READY + pub(b"a"), on(0, b"REQ <id> <n>\n")],
    "DPUB": [b"DPUB {t} <n>\n" + sized(b"a")],
}
ORDER: dict[str, list[Any]] = {
    "IDENTIFY: state before size": [SUB + b"IDENTIFY\n" + size(0)],
    "AUTH: state before parameters": [SUB + b"AUTH x\n" + size(0)],
    "AUTH: parameters before size": [b"AUTH x\n" + size(0)],
    "SUB: state before parameters": [SUB + b"SUB\n"],
    "SUB: heartbeats before parameters": [identify(heartbeat_interval=-1) + b"SUB\n"],
    "SUB: parameters before the name": [b"SUB a*b\n"],
    "SUB: topic before channel": [b"SUB a*b c*d\n"],
    "RDY: state before the count": [b"RDY many\n"],
    "RDY: the count when closing is not looked at": [SUB + b"CLS\nRDY 99999\n"],
    "FIN: state before parameters": [b"FIN\n"],
    "FIN: more parameters": [SUB + b"FIN " + ID + b" more\n"],
    "REQ: state before parameters": [b"REQ\n"],
    "REQ: id before timeout": [SUB + b"REQ 1 many\n"],
    "REQ: timeout before being in flight": [SUB + b"REQ " + ID + b" many\n"],
    "REQ: more parameters": [SUB + b"REQ " + ID + b" 0 more\n"],
    "TOUCH: state before parameters": [b"TOUCH\n"],
    "TOUCH: more parameters": [SUB + b"TOUCH " + ID + b" more\n"],
    "CLS: more parameters": [SUB + b"CLS now\n"],
    "NOP: more parameters": [b"NOP now\n"],
    "PUB: name before size": [b"PUB a*b\n" + size(0)],
    "DPUB: name before timeout": [b"DPUB a*b many\n" + sized(b"a")],
    "DPUB: timeout before size": [b"DPUB {t} many\n" + size(0)],
    "DPUB: range before size": [b"DPUB {t} 3600001\n" + size(0)],
    "DPUB: parameters before the name": [b"DPUB a*b\n" + sized(b"a")],
    "DPUB: more parameters": [READY + b"DPUB {t} 0 more\n" + sized(b"a")],
    "MPUB: name before size": [b"MPUB a*b\n" + size(0)],
    "MPUB: size before count": [b"MPUB {t}\n" + size(5001) + size(0)],
    "MPUB: count before messages": [b"MPUB {t}\n" + size(10) + size(0) + size(0)],
    "MPUB: the first bad message": [b"MPUB {t}\n" + size(30) + size(2) + size(0) + size(2000)],
    "MPUB: the topic is made before the body": [b"MPUB {t}\n" + size(0)],
    "PUB: the topic is not made before the body": [b"PUB {t}\n" + size(0)],
    "FIN: an id with spaces": [SUB + b"FIN 0123 456789abcde\n"],
    "PUB after an error that is not fatal": [SUB + b"FIN " + ID + b"\n" + pub(b"a")],
}  # fmt: skip


def rows() -> dict[str, list[Any]]:
    found = {f"{command} {state}": [*steps, COMMANDS[command]] for state, steps in STATES.items() for command in COMMANDS}
    for command, (before, behind) in NAMED.items():
        found |= {f"{command} name with {kind}": [before + name + behind] for kind, name in NAMES.items()}
    for command, steps in COUNTED.items():
        for kind, number in NUMBERS.items():
            found[f"{command} {kind}"] = [counted(step, number) for step in steps]
    return found | ORDER


def counted(step: Any, number: bytes) -> Any:
    if callable(step):
        return lambda ids: step(ids).replace(b"<n>", number)
    return step.replace(b"<n>", number)


ROWS = rows()


@pytest.fixture(scope="module")
def played(pair: tuple[Server, Server], request: pytest.FixtureRequest) -> Iterator[dict[str, Future[tuple[Any, Any]]]]:
    with playing(pair, ROWS, request) as answers:
        yield answers


@pytest.mark.parametrize("name", ROWS)
def test_answers_as_nsqd_does(played: dict[str, Future[tuple[Any, Any]]], name: str) -> None:
    theirs, ours = played[name].result()
    assert ours == theirs
