"""What an nsqd says to its nsqlookupds, by a pair of sockets: one that answers wrongly, ends or is away holds up nothing."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent import GreenletExit, socket

from framework.errors import FrameworkError
from framework.nsqd import lookups
from framework.nsqd.events import Events
from framework.nsqd.journal import NotStored
from framework.nsqd.lookups import Lookups, Peer
from framework.nsqd.topic import Gone, Made

WHO = b"IDENTIFY\n"


class Wire:
    """A peer that connects by itself to nobody, and the two ends of a connection."""

    def __init__(self, *registrations: bytes) -> None:
        self.said: list[tuple[str, str]] = []
        self.peer = Peer("there:4160", WHO, lambda: list(registrations), lambda level, words: self.said.append((level, words)))
        self.peer.stop()
        self.ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(10)

    def answer(self, *replies: bytes) -> None:
        self.theirs.sendall(b"".join(struct.pack(">i", len(one)) + one for one in replies))


@pytest.mark.parametrize(("at", "http"), [("host", "host:4161"), ("::1", "[::1]:4161"), ("", None)])
def test_who_is_met_is_told_everything_and_can_be_asked_where_it_says(at: str, http: str | None) -> None:
    wire = Wire(b"REGISTER a\n", b"REGISTER b c\n")
    wire.peer._pause, wire.peer._silent = 7.0, True
    wire.answer(json.dumps({"broadcast_address": at, "http_port": 4161}).encode())
    wire.peer._introduce(wire.ours)
    assert wire.theirs.recv(100) == WHO
    assert (wire.peer.http_address, wire.peer._pause, wire.peer._silent) == (http, 0.1, False)
    assert wire.peer._take() == [b"REGISTER a\n", b"REGISTER b c\n"]
    assert wire.peer._take() == []
    assert wire.said == [("INFO", "LOOKUPD(there:4160): connected, 2 registrations to make")]
    wire.peer._wait(wire.ours)  # there is something to say


def test_as_many_commands_are_said_at_once_as_their_answers_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "_AT_ONCE", 2)
    wire, commands = Wire(), [b"REGISTER a\n", b"PING\n", b"REGISTER b\n", b"REGISTER c\n", b"REGISTER d\n"]
    saying = gevent.spawn(wire.peer._say, wire.ours, commands)
    for some in (commands[:2], commands[2:4], commands[4:]):
        gevent.sleep(0.01)
        assert wire.theirs.recv(1000) == b"".join(some)
        wire.answer(*[b"OK"] * len(some))
    saying.get(timeout=10)
    assert [words for _, words in wire.said] == [f"LOOKUPD(there:4160): REGISTER {name}" for name in "abcd"]


def test_another_answer_than_ok_ends_the_connection() -> None:
    wire = Wire()
    wire.answer(b"OK", b"E_BAD_TOPIC")
    with pytest.raises(ConnectionError, match=r"it answered b'REGISTER b\\n' with b'E_BAD_TOPIC'"):
        wire.peer._say(wire.ours, [b"REGISTER a\n", b"REGISTER b\n"])


@pytest.mark.parametrize(("size", "is_one"), [(-1, False), (0, True), (5, True), (6, False)])
def test_an_answer_of_a_size_that_cannot_be_is_none(monkeypatch: pytest.MonkeyPatch, size: int, is_one: bool) -> None:
    monkeypatch.setattr(lookups, "_MAX_REPLY", 5)
    wire = Wire()
    wire.theirs.sendall(struct.pack(">i", size) + b"x" * 6)
    if is_one:
        assert wire.peer._reply(wire.ours) == b"x" * size
    else:
        with pytest.raises(ConnectionError, match=f"it is no nsqlookupd: it announced an answer of {size} bytes"):
            wire.peer._reply(wire.ours)


def test_an_answer_comes_in_pieces_and_one_that_is_cut_short_is_none() -> None:
    wire = Wire()
    reading = gevent.spawn(wire.peer._reply, wire.ours)
    for byte in struct.pack(">i", 3) + b"abc":
        wire.theirs.sendall(bytes([byte]))
        gevent.sleep(0)
    assert reading.get(timeout=10) == b"abc"
    wire.theirs.sendall(struct.pack(">i", 3) + b"ab")
    wire.theirs.close()
    with pytest.raises(ConnectionError, match="it closed the connection"):
        wire.peer._reply(wire.ours)


def test_it_waits_until_there_is_something_to_say_or_it_is_time_for_a_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire()
    waiting = gevent.spawn(wire.peer._wait, wire.ours)
    gevent.sleep(0.02)
    assert not waiting.dead
    wire.peer.tell(b"REGISTER t\n")
    waiting.get(timeout=10)
    assert wire.peer._take() == [b"REGISTER t\n"]
    assert wire.ours.gettimeout() == 5.0
    monkeypatch.setattr(lookups, "_PING_SECONDS", 0.01)
    wire.peer._wait(wire.ours)


@pytest.mark.parametrize(("closes", "words"), [(True, "it closed the connection"), (False, "it speaks without being asked")])
def test_one_that_leaves_or_speaks_unasked_is_seen_at_once(closes: bool, words: str) -> None:
    wire = Wire()
    waiting = gevent.spawn(wire.peer._wait, wire.ours)
    gevent.sleep(0)
    wire.theirs.close() if closes else wire.theirs.sendall(b"x")
    with pytest.raises(ConnectionError, match=words):
        waiting.get(timeout=10)


class Tries:
    """Tries to serve, and the pauses between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, serve: Callable[[int], None], most: int, *missed: bytes) -> None:
        self.pauses: list[float] = []
        self.wire = Wire()
        for command in missed:
            self.wire.peer.tell(command)
        self._most = most
        monkeypatch.setattr(lookups, "gevent", SimpleNamespace(sleep=self._sleep))
        monkeypatch.setattr(lookups, "random", SimpleNamespace(uniform=lambda low, high: 1.0 if (low, high) == (0.5, 1) else 0.0))
        monkeypatch.setattr(self.wire.peer, "_serve", lambda: serve(len(self.pauses)))
        with pytest.raises(GreenletExit):
            self.wire.peer._run()

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == self._most:
            raise GreenletExit


def away(_: int) -> None:
    raise OSError("it is away")


def test_one_that_stays_away_is_tried_less_and_less_often_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(monkeypatch, away, 10)
    assert tries.pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15, 15])
    assert tries.wire.said == [("ERROR", "LOOKUPD(there:4160): it is away")] + [("DEBUG", "LOOKUPD(there:4160): it is away")] * 9


@pytest.mark.parametrize("error", [OSError, ValueError, KeyError, TypeError, ConnectionError])
def test_whatever_is_wrong_with_its_answers_it_is_tried_again(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def wrong(tries: int) -> None:
        raise error

    tries = Tries(monkeypatch, wrong, 2)
    assert tries.wire.said[0] == ("ERROR", f"LOOKUPD(there:4160): {error.__name__}")
    assert len(tries.pauses) == 2


def test_one_that_takes_the_connection_and_says_nothing_has_as_long_as_an_answer_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float | None] = []
    wire = Wire()
    monkeypatch.setattr(lookups, "_REPLY_SECONDS", 3.25)
    monkeypatch.setattr(lookups, "socket", SimpleNamespace(create_connection=lambda *_: wire.ours))
    monkeypatch.setattr(wire.peer, "_introduce", lambda sock: seen.append(sock.gettimeout()) or away(0))
    with pytest.raises(OSError, match="away"):
        wire.peer._serve()
    assert seen == [3.25]


def test_what_it_missed_is_not_said_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told everything as it comes back."""
    tries = Tries(monkeypatch, away, 1, b"REGISTER t\n")
    assert tries.wire.peer._take() == []


def test_a_connection_says_what_there_is_and_pings_and_where_it_can_be_asked_ends_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    peer = Peer(address, WHO, lambda: [b"REGISTER t\n"], lambda level, words: None)
    try:
        with gevent.Timeout(10):
            sock, _ = listener.accept()
            heard = b""
            while heard != b"  V1" + WHO:
                heard += sock.recv(100)
            reply = b'{"broadcast_address": "host", "http_port": 1}'
            sock.sendall(struct.pack(">i", len(reply)) + reply)
            assert sock.recv(100) == b"REGISTER t\n"
            monkeypatch.setattr(lookups, "_PING_SECONDS", 0.01)
            sock.sendall(struct.pack(">i", 2) + b"OK")
            assert sock.recv(100) == b"PING\n"
            assert peer.http_address == "host:1"
            sock.close()
            while peer.http_address is not None:
                gevent.sleep(0.002)
    finally:
        peer.stop()
        listener.close()


# --- all of them ------------------------------------------------------------------------------------------------------


class Asked(SimpleNamespace):
    """A topic as far as it is looked at here."""

    def __init__(self, name: str, *channels: str, fails: bool = False) -> None:
        super().__init__(name=name, channels=dict.fromkeys(channels), deleted=False, did=[])
        self._fails = fails

    def await_channels(self) -> None:
        self.did.append("waits")

    def channel(self, name: str) -> None:
        self.did.append(name)

    def settle(self) -> None:
        self.did.append("settles")
        if self._fails:
            raise NotStored("no room")

    def release(self) -> None:
        self.did.append("goes on")


class All:
    """Two peers that were made but do not run, and what each was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> None:
        self.told: dict[str, list[bytes]] = {}
        self.stopped: list[str] = []
        self.lines: list[str] = []
        self.topics: dict[str, Any] = {}
        self.events = Events()

        def peer(address: str, who: bytes, everything: Callable[[], list[bytes]], log: object) -> object:
            self.who, self.everything = who, everything
            told = self.told.setdefault(address, [])
            asked = address if address in answers else None
            return SimpleNamespace(tell=told.append, stop=lambda: self.stopped.append(address), http_address=asked)

        class Lookupd:
            def __init__(self, address: str, timeout: float) -> None:
                assert timeout == 3.0
                self.address = address

            def lookup(self, topic: str) -> object:
                if isinstance(answers[self.address], Exception):
                    raise answers[self.address]
                return SimpleNamespace(channels=answers[self.address])

        monkeypatch.setattr(lookups, "Peer", peer)
        monkeypatch.setattr(lookups, "Lookupd", Lookupd)
        self.lookups = Lookups(self.topics, self.events, {"tcp_port": 1}, log=self._log, timeout=3.0)

    def _log(self, level: str, words: str) -> None:
        self.lines.append(f"{level} {words}")


def test_each_is_told_what_comes_and_goes_and_who_is_used_no_more_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    every = All(monkeypatch, {})
    every.lookups.use(["a", "b", "a"])
    topic: Any = Asked("t")
    every.events.emit(Made(topic))
    every.events.emit(Made(topic, "c"))
    every.lookups.use(["b", "d"])
    assert every.stopped == ["a"]
    every.events.emit(Gone(topic, "c"))
    every.lookups.stop()
    assert sorted(every.stopped) == ["a", "b", "d"]
    both = [b"REGISTER t\n", b"REGISTER t c\n"]
    assert every.told == {"a": both, "b": [*both, b"UNREGISTER t c\n"], "d": [b"UNREGISTER t c\n"]}
    assert every.lines[:3] == ["INFO LOOKUP(a): adding peer", "INFO LOOKUP(b): adding peer", "INFO LOOKUP(a): removing peer"]
    assert topic.did == [], "nobody can be asked"
    every.topics |= {"t": Asked("t", "c", "d"), "u": Asked("u")}
    assert every.everything() == [b"REGISTER t c\n", b"REGISTER t d\n", b"REGISTER u\n"]
    size, who = every.who[9:13], json.loads(every.who[13:])
    assert (every.who[:9], size, who["tcp_port"]) == (WHO, struct.pack(">i", len(every.who) - 13), 1)
    assert who["version"] == lookups.VERSION


@pytest.mark.parametrize("fails", [False, True])
def test_a_new_topic_has_the_channels_that_any_of_them_knows_before_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    every = All(monkeypatch, {"a": ["d", "b"], "b": ["b", "x#ephemeral", "c"], "c": FrameworkError("it is away")})
    every.lookups.use(["a", "b", "c", "not met yet"])
    topic: Any = Asked("t", fails=fails)
    every.events.emit(Made(topic, "by itself"))
    assert topic.did == []
    every.events.emit(Made(topic))
    assert topic.did == ["waits"]
    with gevent.Timeout(10):
        while topic.did[-1] != "goes on":
            gevent.sleep(0.001)
    assert topic.did == ["waits", "b", "c", "d", "settles", "goes on"]
    (line,) = [line for line in every.lines if "not asked" in line]
    assert re.fullmatch(r"WARNING TOPIC\(t\): not asked for the channels it has elsewhere, after 0\.\d s - it is away", line)


def test_a_topic_that_was_deleted_meanwhile_gets_no_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    every = All(monkeypatch, {"a": ["c"]})
    every.lookups.use(["a"])
    topic: Any = Asked("t")
    every.events.emit(Made(topic))
    topic.deleted = True
    gevent.sleep(0.02)
    assert topic.did == ["waits"]
