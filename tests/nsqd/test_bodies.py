"""What follows the line of a command: what is taken, to the byte, and what is refused, in nsqd's words. Without a socket."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd import bodies as module
from framework.nsqd.bodies import Bodies, Refused
from framework.nsqd.streams import Incoming

MOST_MESSAGE, MOST_BODY = 10, 64


def number(value: int) -> bytes:
    return struct.pack(">i", value)


def sized(*bodies: bytes) -> bytes:
    return b"".join(number(len(body)) + body for body in bodies)


class Client:
    """Sends these bytes, so many at a time, and no more."""

    def __init__(self, data: bytes, piece: int = 1 << 20) -> None:
        self._pieces = [data[at : at + piece] for at in range(0, len(data), piece)]
        self.size = 0
        self.incoming = Incoming(self, lambda: None, self)  # type: ignore[arg-type]
        options: Any = SimpleNamespace(max_msg_size=MOST_MESSAGE, max_body_size=MOST_BODY)
        self.bodies = Bodies(self.incoming, options)

    def recv(self, _size: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def expect(self, size: int) -> None:
        """There is room."""

    def received(self) -> None:
        """It is there."""

    @property
    def rest(self) -> bytes:
        return bytes(self.incoming.buffer[self.incoming.position :]) + b"".join(self._pieces)


PIECES = pytest.mark.parametrize("piece", [1, 3, 1000])


@PIECES
@pytest.mark.parametrize("size", [1, MOST_BODY])
def test_the_body_of_a_command_is_taken_and_what_is_behind_it_is_not(size: int, piece: int) -> None:
    client = Client(number(size) + b"b" * size + b"NOP\n", piece)
    assert client.bodies.body("AUTH") == b"b" * size
    assert client.rest == b"NOP\n"


@PIECES
@pytest.mark.parametrize("size", [1, MOST_MESSAGE])
def test_a_message_is_taken_with_its_size_before_it(size: int, piece: int) -> None:
    client = Client(sized(b"m" * size) + b"NOP\n", piece)
    assert client.bodies.message("PUB") == sized(b"m" * size)
    assert client.rest == b"NOP\n"


@PIECES
@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, MOST_MESSAGE), ((MOST_BODY - 4) // 5, 1)])
def test_the_messages_of_an_mpub_are_taken_together(count: int, size: int, piece: int) -> None:
    messages = sized(*[b"m" * size] * count)
    client = Client(number(4 + len(messages)) + number(count) + messages + b"NOP\n", piece)
    assert client.bodies.messages() == (messages, count)
    assert client.rest == b"NOP\n"


@pytest.mark.parametrize(("sent", "words"), [
    (b"", "E_BAD_BODY AUTH failed to read body size"), (b"\0\0\0", "E_BAD_BODY AUTH failed to read body size"),
    (number(MOST_BODY + 1), "E_BAD_BODY AUTH body too big 65 > 64"), (number(0), "E_BAD_BODY AUTH invalid body size 0"),
    (number(-1), "E_BAD_BODY AUTH invalid body size -1"), (number(3) + b"ab", "E_BAD_BODY AUTH failed to read body"),
])  # fmt: skip
def test_a_body_that_is_none_is_refused(sent: bytes, words: str) -> None:
    refuse(lambda bodies: bodies.body("AUTH"), sent, words)


@pytest.mark.parametrize(("sent", "words"), [
    (b"\0\0\0", "E_BAD_MESSAGE PUB failed to read message body size"),
    (number(0), "E_BAD_MESSAGE PUB invalid message body size 0"), (number(-1), "E_BAD_MESSAGE PUB invalid message body size -1"),
    (number(MOST_MESSAGE + 1), "E_BAD_MESSAGE PUB message too big 11 > 10"),
    (number(3) + b"ab", "E_BAD_MESSAGE PUB failed to read message body"),
])  # fmt: skip
def test_a_message_that_is_none_is_refused(sent: bytes, words: str) -> None:
    refuse(lambda bodies: bodies.message("PUB"), sent, words)


@pytest.mark.parametrize(("sent", "words"), [
    (b"\0\0\0", "E_BAD_BODY MPUB failed to read body size"), (number(0), "E_BAD_BODY MPUB invalid body size 0"),
    (number(-1), "E_BAD_BODY MPUB invalid body size -1"), (number(MOST_BODY + 1), "E_BAD_BODY MPUB body too big 65 > 64"),
    (number(20), "E_BAD_BODY MPUB failed to read message count"),
    (number(20) + number(0), "E_BAD_BODY MPUB invalid message count 0"),
    (number(20) + number(-1), "E_BAD_BODY MPUB invalid message count -1"),
    (number(20) + number(13), "E_BAD_BODY MPUB invalid message count 13"),
    (number(20) + number(2) + sized(b"ok") + number(0), "E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
    (number(20) + number(1) + number(-1), "E_BAD_MESSAGE MPUB invalid message(0) body size -1"),
    (number(20) + number(1) + number(11), "E_BAD_MESSAGE MPUB message too big 11 > 10"),
    (number(20) + number(2) + sized(b"ok") + b"\0\0\0", "E_BAD_MESSAGE MPUB failed to read message(1) body size"),
    (number(20) + number(1) + number(3) + b"ab", "E_BAD_MESSAGE MPUB failed to read message body"),
    (number(20) + number(2) + number(3) + b"ab", "E_BAD_MESSAGE MPUB failed to read message body"),
])  # fmt: skip
def test_an_mpub_that_is_none_is_refused(sent: bytes, words: str) -> None:
    refuse(Bodies.messages, sent, words)


def refuse(read: Any, sent: bytes, words: str) -> None:
    for piece in (1, 1000):
        with pytest.raises(Refused) as caught:
            read(Client(sent, piece).bodies)
        assert (str(caught.value), caught.value.fatal) == (words, True)


@pytest.mark.parametrize(("most", "count", "taken"), [(63, 11, True), (63, 12, False), (64, 12, True), (64, 13, False)])
def test_an_mpub_has_no_more_messages_than_the_largest_can_whatever_size_it_says(most: int, count: int, taken: bool) -> None:
    client = Client(number(1) + number(count) + sized(*[b"m"] * count))
    client.bodies._options.max_body_size = most
    if taken:
        assert client.bodies.messages() == (sized(*[b"m"] * count), count)
    else:
        with pytest.raises(Refused, match=f"E_BAD_BODY MPUB invalid message count {count}"):
            client.bodies.messages()


@pytest.mark.parametrize("spare", [14, 13])
def test_an_mpub_may_exceed_the_most_by_a_little(monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    """Clients count its size wrongly."""
    monkeypatch.setattr(module, "_SPARE", spare)
    messages = sized(*[b"m" * 9] * 6)
    assert len(messages) == MOST_BODY + 14
    client = Client(number(60) + number(6) + messages)
    if spare == 14:
        assert client.bodies.messages() == (messages, 6)
    else:
        with pytest.raises(Refused, match="E_BAD_BODY MPUB body too big 78 > 64"):
            client.bodies.messages()


# --- a run of PUBs ---------------------------------------------------------------------------------------------------------

LINE = b"PUB orders\n"


def run(data: bytes) -> tuple[bytes, int, bytes]:
    """What is taken of PUBs that have come, how many they are, and what is left."""
    client = Client(data)
    client.incoming.more()
    messages, count = client.bodies.run(LINE)
    return messages, count, client.rest


@pytest.mark.parametrize("rest", [
    b"", b"PUB order", LINE, LINE + b"\0\0\0", LINE + number(3) + b"ab", LINE + number(0), LINE + number(-1),
    LINE + number(11) + b"x" * 11, b"PUB others\n" + sized(b"x"), b"NOP\n",
])  # fmt: skip
def test_all_that_have_come_whole_and_are_right_are_taken_together(rest: bytes) -> None:
    messages = sized(b"m"), sized(b"m" * MOST_MESSAGE), sized(b"mm")
    assert run(b"".join(LINE + each for each in messages) + rest) == (b"".join(messages), 3, rest)
    assert run(LINE + messages[0]) == (messages[0], 1, b"")


def test_of_very_many_some_are_taken_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TURN", 2)
    one = LINE + sized(b"m")
    assert run(one * 5) == (sized(b"m", b"m"), 2, one * 3)
    assert run(one * 2) == (sized(b"m", b"m"), 2, b"")
