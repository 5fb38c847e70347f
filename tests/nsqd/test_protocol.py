"""What a client is answered, and what is counted of it: over a pair of sockets, on a broker without a server."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket

from framework.nsqd.broker import Broker
from framework.nsqd.journal import NotStored
from framework.nsqd.options import TLS_REQUIRED, parse
from framework.nsqd.protocol import CLOSING, INIT, SUBSCRIBED, Client
from framework.nsqd.store import Store
from framework.nsqd.topic import Topic
from framework.nsqd.underway import Memory
from tests.nsqd.conftest import MESSAGE
from tests.nsqd.speaking import fin, identify, mpub, pub, sized

DEADLINE = 10.0


class Session:
    """A client, seen from both ends."""

    def __init__(self, broker: Broker, hello: bytes = b"  V2") -> None:
        ours, self.sock = socket.socketpair()
        self.sock.settimeout(DEADLINE)
        self.at = Client(broker, ours, "10.0.0.1:4999", Memory(1 << 20))
        self.greenlet = gevent.spawn(self.at.run)
        self.sock.sendall(hello)

    def frame(self) -> tuple[int, bytes]:
        """The next; of kind -1 at the end of the connection."""
        head = self._exactly(8)
        if len(head) < 8:
            return -1, head
        size, kind = struct.unpack(">ii", head)
        return kind, self._exactly(size - 4)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count and (more := self.sock.recv(count - len(data))):
            data += more
        return data

    def say(self, commands: bytes) -> bytes:
        """The next answer."""
        self.sock.sendall(commands)
        kind, data = self.frame()
        assert kind != MESSAGE, data
        return data

    def messages(self, count: int) -> list[tuple[bytes, bytes, int]]:
        """The next: their ids, bodies and attempts."""
        frames = [self.frame() for _ in range(count)]
        assert {kind for kind, _ in frames} <= {MESSAGE}, frames
        return [(data[10:26], data[26:], int.from_bytes(data[8:10], "big")) for _, data in frames]

    def done(self, commands: bytes) -> None:
        """Return when it has dealt with these, which have no answer."""
        assert self.say(commands + b"TOUCH 0000000000000000\n").startswith(b"E_TOUCH_FAILED")

    def has_ended(self) -> bool:
        self.greenlet.join(DEADLINE)
        return self.greenlet.dead and self.frame()[0] == -1


Opened = Callable[..., Session]


@pytest.fixture
def broker(folder: Path) -> Iterator[Broker]:
    flags = ("--max-rdy-count=10", "--max-channel-consumers=2", "--max-msg-timeout=100s", "--max-req-timeout=60s")
    made = Broker(Store(folder), parse([f"--data-path={folder}", *flags]), lambda level, words: None)
    yield made
    made.stop()


@pytest.fixture
def session(broker: Broker) -> Iterator[Opened]:
    made: list[Session] = []

    def open_(hello: bytes = b"  V2") -> Session:
        made.append(Session(broker, hello))
        return made[-1]

    yield open_
    for one in made:
        one.sock.close()
        one.greenlet.join(DEADLINE)


@pytest.fixture
def subscribed(session: Opened) -> Session:
    """To t/c."""
    one = session()
    assert one.say(b"SUB t c\n") == b"OK"
    return one


@pytest.fixture
def holding(subscribed: Session) -> Session:
    """It has one message, the body of which is x."""
    assert subscribed.say(pub("t", b"x")) == b"OK"
    subscribed.sock.sendall(b"RDY 1\n")
    subscribed.messages(1)
    return subscribed


def test_another_protocol_is_refused(session: Opened) -> None:
    one = session(b"  V1")
    assert one.frame()[1] == b"E_BAD_PROTOCOL"
    assert one.has_ended()


def test_a_client_is_new_then_subscribed_then_closing(subscribed: Session, session: Opened) -> None:
    assert session().at.state == INIT
    assert (subscribed.at.state, subscribed.at.ready) == (SUBSCRIBED, 0)
    subscribed.done(b"RDY 5\n")
    assert subscribed.at.ready == 5
    assert subscribed.say(b"CLS\n") == b"CLOSE_WAIT"
    assert (subscribed.at.state, subscribed.at.ready) == (CLOSING, 0)
    subscribed.done(b"RDY 7\n")
    assert subscribed.at.ready == 0, "a client on its way out gets more"
    assert subscribed.say(b"CLS\n") == b"E_INVALID cannot CLS in current state"
    assert subscribed.has_ended()


@pytest.mark.parametrize(("given", "ready"), [(b" 0", 0), (b" 10", 10), (b"", 1), (b" 007", 7)])
def test_a_client_is_given_as_many_as_it_is_ready_for(subscribed: Session, given: bytes, ready: int) -> None:
    subscribed.done(b"RDY%b\n" % given)
    assert (subscribed.at.ready, subscribed.at.room()) == (ready, ready)


@pytest.mark.parametrize(("given", "words"), [
    (b"11", b"count 11 out of range 0-10"), (b"18446744073709551615", b"count -1 out of range 0-10"),
    (b"x", b"could not parse count x"), (b"-1", b"could not parse count -1"),
])  # fmt: skip
def test_more_than_it_may_have_or_less_than_nothing_ends_it(subscribed: Session, given: bytes, words: bytes) -> None:
    assert subscribed.say(b"RDY %b\n" % given) == b"E_INVALID RDY " + words
    assert subscribed.has_ended()


@pytest.mark.parametrize(("command", "answer"), [
    (b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),
    (b"SUB ! c\n", b"E_BAD_TOPIC SUB topic name \"!\" is not valid"),
    (b"SUB t !\n", b"E_BAD_CHANNEL SUB channel name \"!\" is not valid"),
    (b"RDY 1\n", b"E_INVALID cannot RDY in current state"), (b"WHAT\n", b"E_INVALID invalid command WHAT"),
    (b"AUTH x\n", b"E_INVALID AUTH invalid number of parameters"),
    (b"MPUB\n", b"E_INVALID MPUB insufficient number of parameters"),
    (b"DPUB t x\n", b"E_INVALID DPUB could not parse timeout x"),
    (b"DPUB t 60001\n", b"E_INVALID DPUB timeout 60001 out of range 0-60000"),
    (b"DPUB t 9223372036855\n", b"E_INVALID DPUB timeout 9223372036855 out of range 0-60000"),
    (identify(heartbeat_interval=-1) + b"SUB t c\n", b"OK"),
    (b"IDENTIFY\n" + sized(b"{"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    (identify(feature_negotiation=True, snappy=True, deflate=True),
     b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"),
])  # fmt: skip
def test_what_is_wrong_is_said_and_ends_it(session: Opened, broker: Broker, command: bytes, answer: bytes) -> None:
    one = session()
    assert one.say(command) == answer
    if answer == b"OK":
        assert one.frame()[1] == b"E_INVALID cannot SUB with heartbeats disabled"
    assert one.has_ended()
    assert not broker.topics


@pytest.mark.parametrize("command", [b"FIN", b"REQ", b"REQ 0123456789abcdef", b"TOUCH"])
def test_a_command_about_a_message_that_names_none_is_refused_and_ends_it(subscribed: Session, command: bytes) -> None:
    assert subscribed.say(command + b"\n") == b"E_INVALID %b insufficient number of params" % command.split()[0]
    assert subscribed.has_ended()


def test_only_a_new_channel_is_waited_for_until_the_log_has_it(session: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    settle = Topic.settle
    monkeypatch.setattr(Topic, "settle", lambda self: (waited.append(self.name), settle(self)))
    assert [session().say(b"SUB t %b\n" % name) for name in (b"c", b"c", b"d")] == [b"OK"] * 3
    assert waited == ["t", "t"], "for the first of each"


def test_a_channel_has_so_many_consumers_and_another_when_one_has_left(session: Opened) -> None:
    one, two = session(), session()
    assert [one.say(b"SUB t c\n"), two.say(b"SUB t c\n")] == [b"OK", b"OK"]
    refused = b"E_SUB_FAILED SUB failed consumers for t:c exceeds limit of 2"
    assert [session().say(b"SUB t c\n"), session().say(b"SUB t other\n")] == [refused, b"OK"]
    one.sock.close()
    one.greenlet.join(DEADLINE)
    assert session().say(b"SUB t c\n") == b"OK"


def test_what_a_client_does_with_messages_is_counted(subscribed: Session, broker: Broker) -> None:
    assert subscribed.say(mpub("t", b"a", b"b", b"c", b"d")) == b"OK"
    assert subscribed.at.publishing.counts == {"t": 4}
    subscribed.sock.sendall(b"RDY 3\n")
    (first, *_), (second, *_), (third, *_) = subscribed.messages(3)
    assert (subscribed.at.message_count, subscribed.at.room()) == (3, 0)
    subscribed.sock.sendall(fin(first, second))
    ((fourth, body, _),) = subscribed.messages(1)
    assert (body, subscribed.at.finish_count) == (b"d", 2)
    subscribed.sock.sendall(b"REQ %b 0\n" % third)
    ((again, body, attempts),) = subscribed.messages(1)
    assert (again, body, attempts, subscribed.at.requeue_count) == (third, b"c", 2, 1)
    subscribed.done(fin(third) + b"REQ %b 60000\n" % fourth)
    channel = broker.topics["t"].channels["c"]
    assert (subscribed.at.finish_count, subscribed.at.requeue_count, len(channel.deferred)) == (3, 2, 1)
    assert (channel.depth, channel.in_flight_count) == (0, 0)


@pytest.mark.parametrize(("command", "answer"), [
    (b"FIN %b\n", b"E_FIN_FAILED FIN %b failed ID not in flight"),
    (b"REQ %b 0\n", b"E_REQ_FAILED REQ %b failed ID not in flight"),
    (b"TOUCH %b\n", b"E_TOUCH_FAILED TOUCH %b failed ID not in flight"),
])  # fmt: skip
def test_who_has_not_the_message_is_told_and_goes_on(subscribed: Session, command: bytes, answer: bytes) -> None:
    name = b"0123456789abcdef"
    assert subscribed.say(command % name) == answer % name
    assert (subscribed.at.finish_count, subscribed.at.requeue_count) == (0, 0)
    assert subscribed.say(pub("t", b"x")) == b"OK"


@pytest.mark.parametrize(("delay", "seconds"), [(1, 0), (40_000, 40), (60_000, 60), (600_000, 60), (9_223_372_036_855, 0)])
def test_a_message_waits_for_as_long_as_is_asked_for_and_allowed(
    holding: Session, broker: Broker, delay: int, seconds: float
) -> None:
    """The last is less than nothing in Go's 64 bits."""
    (message_id,) = holding.at.leases.messages
    if not seconds:
        holding.sock.sendall(b"REQ %b %d\n" % (message_id, delay))
        assert holding.messages(1) == [(message_id, b"x", 2)]
        return
    before = time.monotonic()
    holding.done(b"REQ %b %d\n" % (message_id, delay))
    ((when, *_),) = broker.topics["t"].channels["c"].deferred
    assert before + seconds <= when <= time.monotonic() + seconds
    assert holding.at.room() == 1


@pytest.mark.parametrize(("number", "seconds"), [
    (0, 0.0), (1, 0.001), (40_000, 40.0), (60_000, 60.0), (60_001, 60.0), (9_223_372_036_855, -9_223_372_036.854551),
    (18_446_744_073_710, 0.000448384),
])  # fmt: skip
def test_a_delay_is_in_milliseconds_and_counted_in_nanoseconds_of_64_bits_as_by_go(
    holding: Session, monkeypatch: pytest.MonkeyPatch, number: int, seconds: float
) -> None:
    asked: list[float] = []
    assert holding.at.channel is not None
    monkeypatch.setattr(holding.at.channel, "requeue", lambda client, message_id, delay: asked.append(delay))
    holding.done(b"REQ 0123456789abcdef %d\n" % number)
    assert asked == [seconds]


@pytest.mark.parametrize(("number", "due"), [(0, 0), (1, 1_000_001), (30_000, 1_030_000), (18_446_744_073_710, 1_000_000)])
def test_a_deferred_publish_is_due_so_many_milliseconds_from_now(
    subscribed: Session, broker: Broker, monkeypatch: pytest.MonkeyPatch, number: int, due: int
) -> None:
    told: list[int] = []
    monkeypatch.setattr(broker.clock, "now", lambda: 1_000_000.0)
    monkeypatch.setattr(subscribed.at.publishing, "add", lambda command, topic, what, due: told.append(due))
    subscribed.sock.sendall(b"DPUB t %d\n" % number + sized(b"later"))
    subscribed.done(b"")
    assert told == [due]


@pytest.mark.parametrize(("delay", "deferred"), [(0, 0), (30_000, 1), (60_000, 1)])
def test_a_publish_is_deferred_where_it_has_a_delay(subscribed: Session, broker: Broker, delay: int, deferred: int) -> None:
    before = broker.clock.now()
    assert subscribed.say(b"DPUB t %d\n" % delay + sized(b"later")) == b"OK"
    channel = broker.topics["t"].channels["c"]
    assert (channel.depth, len(channel.deferred)) == (1 - deferred, deferred)
    if deferred:
        (save,) = [broker.topics["t"].channels["c"].snapshot()]
        (row,) = save.put.values()
        assert delay - 1 <= row.due - before <= delay + 1000


def test_a_touch_prolongs_the_lease(holding: Session) -> None:
    ((message_id, message),) = holding.at.leases.messages.items()
    message.deadline -= 50
    until = message.deadline
    holding.done(b"TOUCH %b\n" % message_id)
    assert message.deadline > until + 40


def test_who_leaves_keeps_no_place_and_no_ephemeral_channel(session: Opened, broker: Broker) -> None:
    one = session()
    assert one.say(b"SUB t here#ephemeral\n") == b"OK"
    assert set(broker.topics["t"].channels) == {"here#ephemeral"}
    one.sock.close()
    one.greenlet.join(DEADLINE)
    assert not broker.topics["t"].channels


def test_what_comes_with_nops_between_is_dealt_with_in_its_order(subscribed: Session) -> None:
    sent: list[Any] = [subscribed.say(b"NOP\n" * 3 + b"NOP\r\n" + pub("t", b"x") + b"NOP\n")]
    assert sent == [b"OK"]
    assert subscribed.say(b"NOP\n" * 12_000 + pub("t", b"y")) == b"OK"
    assert subscribed.at.publishing.counts == {"t": 2}


def test_an_error_behind_a_publish_that_could_not_be_stored_does_not_hide_it(
    session: Opened, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise NotStored("there is no room")

    monkeypatch.setattr(broker, "publish", full)
    one = session()
    assert one.say(pub("t", b"x") + b"WHAT\n") == b"E_PUB_FAILED PUB failed there is no room"
    assert one.has_ended()


def test_a_channel_is_served_for_who_asks_for_more_and_not_with_each_command(
    holding: Session, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[int] = []
    monkeypatch.setattr(broker.topics["t"].channels["c"], "serve", lambda: served.append(1))
    assert holding.say(pub("other", b"x")) == b"OK"
    assert served == []
    holding.done(b"RDY 2\n")
    assert served == [1]
    assert holding.say(pub("other", b"x")) == b"OK"
    assert served == [1]


def test_where_tls_is_required_nothing_else_is_taken_before_it(session: Opened, broker: Broker) -> None:
    broker.options.tls_required = TLS_REQUIRED
    one, two = session(), session()
    assert one.say(b"SUB t c\n") == b"E_INVALID cannot SUB in current state (TLS required)"
    assert one.has_ended()
    assert two.say(identify()) == b"OK"
    assert two.say(pub("t", b"x")) == b"E_INVALID cannot PUB in current state (TLS required)"


def test_who_says_nothing_of_itself_is_known_by_its_address(session: Opened) -> None:
    one, before = session(), time.time()
    assert (one.at.wishes.client_id, one.at.wishes.hostname, one.at.address) == ("10.0.0.1", "10.0.0.1", "10.0.0.1:4999")
    assert before - 10 <= one.at.connected <= time.time()
    assert one.say(identify(client_id="me", hostname="here")) == b"OK"
    assert (one.at.wishes.client_id, one.at.wishes.hostname) == ("me", "here")


def test_the_first_that_it_says_of_itself_and_no_other_sets_its_heartbeat(
    session: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, awaited, beats = session(), list[float](), list[float]()  # it has not run yet
    monkeypatch.setattr(one.at.connection, "await_hello", awaited.append)
    monkeypatch.setattr(one.at.connection, "start_heartbeat", beats.append)
    assert one.say(b"PUB t\n" + sized(b"x")) == b"OK"
    assert (awaited, beats) == ([60.0], [30.0])
    for interval in (5000, 7000):
        assert one.say(identify(heartbeat_interval=interval)) == b"OK"
    assert beats == [30.0, 5.0]


def test_a_publish_that_comes_in_pieces_is_one(session: Opened, broker: Broker) -> None:
    one, commands = session(), pub("t", b"first", b"second")
    for at in range(len(commands)):
        one.sock.sendall(commands[at : at + 1])
        gevent.sleep(0)
    assert [one.frame()[1], one.frame()[1]] == [b"OK", b"OK"]
    assert broker.topics["t"].message_count == 2


def test_the_first_of_publishes_that_come_together_is_stored_with_the_others(
    session: Opened, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, published, real = session(), list[int](), broker.publish
    assert one.say(pub("t", b"before")) == b"OK"
    monkeypatch.setattr(broker, "publish", lambda entries: published.append(len(entries)) or real(entries))
    one.sock.sendall(pub("t", b"a", b"b", b"c"))
    assert [one.frame()[1] for _ in range(3)] == [b"OK"] * 3
    assert published == [1]
    (batch,) = broker.read(broker.topics["t"].id, broker.topics["t"].next - 3, 1)
    assert batch.count == 3


def test_the_sample_of_a_client_is_the_share_that_it_asked_for(session: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    one = session()
    assert one.say(identify(sample_rate=30)) == b"OK"
    assert one.say(b"SUB t c\n") == b"OK"
    assert one.at.sample_rate == 30
    rolls = iter(range(100))
    monkeypatch.setattr("framework.nsqd.protocol.random.randrange", lambda most: next(rolls) if most == 100 else -1)
    assert sum(one.at.sampled() for _ in range(100)) == 31, "nsqd too compares with >"


def test_a_lease_is_as_long_as_the_client_asked_for(session: Opened) -> None:
    one = session()
    assert one.say(identify(msg_timeout=7000)) == b"OK"
    assert one.say(b"SUB t c\n") == b"OK"
    assert (one.at.leases.duration, one.at.leases.max_duration) == (7.0, 100.0)


def test_a_channel_that_cannot_be_stored_is_refused_with_the_reason(session: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(topic: Topic) -> None:
        raise NotStored("no space left on the disk")

    monkeypatch.setattr(Topic, "settle", refuse)
    one = session()
    assert one.say(b"SUB t c\n") == b"E_SUB_FAILED SUB failed no space left on the disk"
    assert one.has_ended()
