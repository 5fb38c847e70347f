"""What is published, without a broker: messages put into requests, and what the answers to those say of each message."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.bodies import Bodies
from framework.errors import BrokerUnreachable, FrameworkError, PublishError
from framework.transports.publish_link import NotStored, Refused
from framework.transports.rocketmq.commands import Command, Commands
from framework.transports.rocketmq.producer import RocketProducer
from framework.transports.rocketmq.publish_link import WINDOW, WINDOW_BYTES, PublishLink
from framework.transports.rocketmq.urls import Names, Options
from framework.transports.rocketmq.wire import properties
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.rocketmq.wire.properties import Outgoing

# --- requests ----------------------------------------------------------------------------------------------


def messages(command: Command) -> list[tuple[bytes, dict[str, str]]]:
    """The bodies and properties in a batch."""
    found, at = [], 0
    while at < len(command.body):
        total, _, _, _, size = properties._BATCHED.unpack_from(command.body, at)
        body = command.body[at + 20 : at + 20 + size]
        found.append((body, properties.decode(command.body[at + 22 + size : at + total].decode())))
        at += total
    return found


def test_a_message_bears_the_time_at_which_it_was_made() -> None:
    before = time.time() * 1000
    made = Commands(2000)
    fields = [made.singles("t", "there", [b"x"], {})[0].fields, next(iter(made.together("t", "there", [b"x"] * 2, {}))).fields]
    for one in fields:
        assert before - 1 <= int(one["g"]) <= time.time() * 1000 + 1


def test_messages_whose_properties_are_alike_are_written_as_any_others() -> None:
    bodies = [b"a", b"bb", b"c"] * 100
    alike = properties.encode_alike(bodies, list(map(len, bodies)), "UNIQ_KEY\x01AB", "\x02TAGS\x01x\x02")
    one_by_one = [Outgoing(body, f"UNIQ_KEY\x01AB{n:04X}\x02TAGS\x01x\x02") for n, body in enumerate(bodies)]
    assert alike == properties.encode_batch(one_by_one)


def test_every_message_of_a_producer_has_an_id_of_its_own() -> None:
    made = Commands(1 << 20)
    sent = [*made.singles("t", "there", [b"x"] * 3, {}), *made.together("t", "there", Bodies([b"x"] * 1100), {})]
    sent += [*made.together("t", "there", [b"x"] * 2, {}), *made.singles("t", "there", [b"x"], {})]
    ids = [properties.decode(one.fields["i"])["UNIQ_KEY"] for one in sent if one.count == 1]
    ids += [given["UNIQ_KEY"] for one in sent if one.count > 1 for _, given in messages(one)]
    assert (len(set(ids)), {len(id) for id in ids}) == (3 + 1100 + 2 + 1, {32})


@given(st.lists(st.binary(min_size=1, max_size=900), min_size=1, max_size=30))
def test_a_batch_is_split_where_its_broker_takes_no_more(bodies: list[bytes]) -> None:
    commands = Commands(2000).together("t", "there", bodies, {"TAGS": "new"})
    assert sum(command.count for command in commands) == len(bodies)
    sent = []
    for command in commands:
        if command.count == 1:
            assert command.code == Request.SEND_MESSAGE_V2
            sent.append((command.body, properties.decode(command.fields["i"])))
            continue
        assert (command.code, command.fields["m"]) == (Request.SEND_BATCH_MESSAGE, "true")
        assert len(command.body) <= 2000
        sent += messages(command)
    assert [body for body, _ in sent] == bodies
    assert {found["TAGS"] for _, found in sent} == {"new"}
    assert len({found["UNIQ_KEY"] for _, found in sent}) == len(bodies)


def test_what_a_forked_child_publishes_has_other_ids_than_what_its_parent_does() -> None:
    commands = Commands(2000)

    def ids() -> bytes:
        (single,) = commands.singles("orders", "orders", [b""], {})
        both = [single, *commands.together("orders", "orders", [b"", b""], {})]
        found = [properties.decode(one.fields["i"]) if one.count == 1 else messages(one)[0][1] for one in both]
        return b" ".join(each["UNIQ_KEY"].encode() for each in found)

    reading, writing = os.pipe()
    if not (child := os.fork()):
        status = 1
        try:
            os.write(writing, ids())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    assert os.waitpid(child, 0) == (child, 0)
    theirs = os.read(reading, 1000).split()
    os.close(reading)
    assert len(theirs) >= 2
    assert not set(theirs) & set(ids().split())


def test_the_requests_of_many_messages_lie_in_queues_that_are_far_apart() -> None:
    made = Commands(1 << 20)
    for count, requests in ((100, 1), (200, 2), (1000, 4), (5000, 10)):
        commands = made.together("t", "there", [b"x"] * count, {})
        assert len(commands) == requests
        queues = sorted(int(command.to_queue(8)["e"]) for command in commands)
        assert len(set(queues)) == min(requests, 8)
        if requests == 2:
            assert queues[1] - queues[0] == 4
        assert commands[0].to_queue(0)["e"] == "-1"


def test_where_there_are_fewer_queues_now_it_is_asked_again_how_many() -> None:
    illegal = Frame(Answer.INVALID_PARAMETER, remark="request queueId[7] is illegal, TopicConfig")
    one = link(lambda number: illegal)
    (found,) = one.ask_each(Commands(1 << 20).together("t", "there", [b"x"] * 5, {}), 5.0)
    assert type(found) is NotStored
    assert one._queues == {}


def test_a_delay_is_one_of_the_brokers_clock_where_there_are_timers_and_a_level_where_there_are_none() -> None:
    """By a time of day what was to come 2 s later came an hour later, where the publisher's clock was an hour ahead."""
    command = Commands(1000).singles("t", "there", [b"x"], {}, 61.0)[0]
    assert "TIMER_DEL" not in command.fields["i"]
    assert 0 < int(properties.decode(command.timed()["i"])["TIMER_DELAY_MS"]) <= 61_000
    assert properties.decode(command.levelled()["i"])["DELAY"] == "6"  # two minutes
    command.due -= 100.0
    assert properties.decode(command.timed()["i"])["TIMER_DELAY_MS"] == "0", "it is tried again"
    at_once = Commands(1000).singles("t", "there", [b"x"], {})[0]
    assert at_once.timed() == at_once.levelled() == at_once.fields


# --- answers -----------------------------------------------------------------------------------------------


class Paper:
    """A session, as far as a link uses it, that answers what ``say`` says of the number of each request; None: not at all."""

    server = "broker:1"
    leaving = False

    def __init__(self, say: Callable[[int], Any]) -> None:
        self._say = say
        self.error: FrameworkError | None = None
        self.heard_at = time.monotonic()
        self.requests: list[tuple[int, dict[str, str], bytes]] = []
        self.most = self.under_way = 0

    def call(self, code: int, fields: dict[str, str], then: Any, *, body: bytes = b"") -> int:
        self.requests.append((code, fields, body))
        self.under_way += len(body)
        self.most = max(self.most, self.under_way)
        answer = self._say(len(self.requests))
        if answer is not None:
            from gevent.hub import get_hub

            get_hub().loop.run_callback(self._answer, then, answer, len(body))
        return len(self.requests)

    def _answer(self, then: Any, answer: Any, size: int) -> None:
        self.under_way -= size
        if isinstance(answer, FrameworkError):
            self.error = answer
        then(answer, time.monotonic())

    def give_up(self, number: int) -> None: ...

    def poll(self) -> None: ...

    def end(self, error: FrameworkError) -> None:
        self.error = error

    def shut(self) -> None: ...

    def fileno(self) -> int:
        return -1


class Home:
    def __init__(self, *, timers: bool = True) -> None:
        self.timers = timers

    def make(self, topic: str) -> None: ...

    def queues(self, topic: str) -> int:
        return 8

    def has_timers(self) -> bool:
        return self.timers


def link(say: Callable[[int], Any], **home: bool) -> PublishLink:
    paper: Any = Paper(say)
    return PublishLink("broker-a", paper, Home(**home))


def singles(count: int, delay: float = 0.0) -> list[Command]:
    made = Commands(1000)
    return made.singles("t", "there", [b"%d" % number for number in range(count)], {}, delay)


@pytest.mark.parametrize(
    ("answer", "kind", "stored"),
    [
        (Frame(Answer.SUCCESS), type(None), True),
        (Frame(Answer.FLUSH_DISK_TIMEOUT), type(None), True),
        (Frame(Answer.SLAVE_NOT_AVAILABLE), type(None), True),
        (Frame(Answer.FLUSH_SLAVE_TIMEOUT), type(None), True),
        (Frame(Answer.SYSTEM_BUSY, remark="[TIMEOUT_CLEAN_QUEUE]broker busy"), NotStored, False),
        (Frame(Answer.SYSTEM_ERROR, remark="[PC_SYNCHRONIZED]broker busy, start flow control for a while"), NotStored, False),
        (Frame(Answer.SYSTEM_ERROR, remark="create mapped file failed, server is busy or broken."), Refused, False),
        (Frame(Answer.SYSTEM_ERROR, remark="in-sync replicas not enough"), Refused, False),
        (Frame(Answer.SERVICE_NOT_AVAILABLE, remark="the broker's disk is full"), Refused, False),
        (Frame(Answer.NO_PERMISSION, remark="sending message is forbidden"), Refused, False),
        (Frame(Answer.SYSTEM_ERROR, remark="UNKNOWN_ERROR"), PublishError, None),
        (Frame(Answer.SYSTEM_ERROR, remark="java.lang.NullPointerException"), PublishError, False),
        (Frame(Answer.MESSAGE_ILLEGAL, remark="the message is illegal"), PublishError, False),
        (BrokerUnreachable("the connection broke"), PublishError, None),
    ],
)
def test_each_answer_says_whether_the_message_is_stored(answer: Any, kind: type, stored: bool | None) -> None:
    (found,) = link(lambda number: answer).ask_each(singles(1), 5.0)
    assert type(found) is kind or (kind is PublishError and isinstance(found, PublishError))
    if isinstance(found, PublishError):
        assert found.stored is stored


def test_of_what_was_under_way_when_the_connection_broke_nothing_is_known_and_the_rest_was_not_sent() -> None:
    broke = BrokerUnreachable("the connection broke")
    found = link(lambda number: Frame(0) if number <= 3 else broke if number == WINDOW else None).ask_each(
        singles(2 * WINDOW), 0.5
    )
    assert found[:3] == [None] * 3
    assert {getattr(one, "stored", "none") for one in found[3:WINDOW]} == {None}
    assert {type(one) for one in found[WINDOW + 3 :]} == {NotStored}


def test_no_more_bytes_are_under_way_than_a_broker_has_room_for() -> None:
    made = Commands(8 << 20)
    large = made.singles("t", "there", [b"x" * (5 << 20)] * 6, {})
    one = link(lambda number: Frame(0))
    assert one.ask_each(large, 5.0) == [None] * 6
    paper: Any = one._session
    assert 5 << 20 < paper.most <= WINDOW_BYTES


def test_a_delay_longer_than_the_longest_level_is_refused_where_there_are_no_timers() -> None:
    one = link(lambda number: Frame(0), timers=False)
    short, long = one.ask_each(singles(1, 3.0) + singles(1, 8000.0), 5.0)
    assert short is None
    assert isinstance(long, PublishError)
    assert long.stored is False
    assert "has no timers, and keeps a delay of 7200 s at most" in str(long)
    paper: Any = one._session
    assert [properties.decode(fields["i"]).get("DELAY") for _, fields, _ in paper.requests] == ["2"]


def test_the_longest_level_is_a_delay_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("commands", "publish_link"):
        monkeypatch.setattr(f"framework.transports.rocketmq.{module}.time", lambda: 1_800_000_000.0)
    assert link(lambda number: Frame(0), timers=False).ask_each(singles(1, 7200.0), 5.0) == [None]


def test_several_are_published_in_few_requests_and_an_error_says_how_many_of_them_are_stored() -> None:
    answers = [Frame(0), BrokerUnreachable("the connection broke")]
    made = link(lambda number: answers[number - 1])
    producer = RocketProducer(lambda: ["broker-a"], lambda node, timeout: made, Names(), Options(max_body=2000))
    with pytest.raises(PublishError, match=r"^3 of 5 messages are stored; of the others: ") as unknown:
        producer.publish("t", [b"x" * 300] * 5, timeout=1.0)
    assert unknown.value.stored is None
    producer.close()
