"""A topic and its channels on paper: where messages wait, who gets them, what is declared and saved. No disk, no sockets."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from framework.nsqd import topic as topics
from framework.nsqd.channel import Channel, ChannelChanged
from framework.nsqd.journal import Declares, Group
from framework.nsqd.options import Options, parse
from framework.nsqd.store import Batch, ChannelState, Correction, Declaration, Declared, Entry, Retry, TopicState
from framework.nsqd.topic import Deserted, Emptied, Gone, Made, Topic, TopicChanged
from tests.nsqd.storing import payload
from tests.nsqd.taking import Taker


class Port:
    """The nsqd around it. It notes what it is told."""

    def __init__(self) -> None:
        self.options: Options = parse(["--data-path=/nowhere", "--mem-queue-size=5"])
        self.clock: Any = SimpleNamespace(now=lambda: 1_000_000.0)
        self.health: Any = SimpleNamespace(works=lambda *_: None, fails=self.fails)
        self.recent: dict[tuple[int, int], Batch] = {}
        self.log_has: list[Batch] = []
        self.events: list[Any] = []
        self.failures: list[str] = []

    def log(self, level: str, words: str) -> None: ...

    def fails(self, what: str, error: Exception) -> None:
        self.failures.append(str(error))

    def emit(self, event: object) -> None:
        self.events.append(event)

    def read(self, topic: int, seq: int, max_bytes: int) -> list[Batch]:
        return [one for one in self.log_has if one.end > seq]

    def bodies(self, topic: int, seqs: Iterable[int], max_bytes: int) -> dict[int, tuple[int, bytes] | None]:
        return {seq: (7, b"read %d" % seq) for seq in seqs}


class Case:
    def __init__(self, name: str = "t", **state: Any) -> None:
        self.port = Port()
        self.topic = Topic(self.port, TopicState(1, name, **{"next": 100, "pumped": 100, **state}))  # type: ignore[arg-type]
        self.port.events.clear()

    def publish(self, *bodies: bytes, ts: int = 50, due: int = 0) -> Batch:
        batch = Batch(1, self.topic.next, len(bodies), ts, due, payload(*bodies))
        self.port.recent[1, batch.first] = batch
        self.port.log_has.append(batch)
        self.topic.committed(batch)
        return batch

    def declare(self) -> None:
        """What it declares is committed."""
        self.topic.recorded(self.topic.next, self.topic.declaration())

    def channel(self, name: str = "c") -> Channel:
        found = self.topic.channel(name)
        self.declare()
        return found

    def kinds(self) -> list[type]:
        kinds = [type(one) for one in self.port.events]
        self.port.events.clear()
        return kinds


def turn() -> None:
    gevent.sleep(0.01)


def test_what_is_published_before_there_is_a_channel_waits_and_goes_to_the_first_once_it_is_declared() -> None:
    case = Case()
    case.publish(b"a", b"b")
    assert (case.topic.depth, case.topic.pumped, case.topic.next) == (2, 100, 102)
    assert (case.topic.message_count, case.topic.message_bytes) == (2, 2)
    channel = case.topic.channel("c")
    assert case.topic.channel("c") is channel
    case.publish(b"c")
    assert (case.topic.depth, channel.depth, case.topic.pumped) == (3, 0, 100)
    case.declare()
    assert (case.topic.depth, channel.depth, channel.message_count, case.topic.pumped) == (0, 3, 3, 103)
    case.publish(b"d")
    assert (case.topic.depth, channel.depth, channel.message_count, case.topic.pumped) == (0, 4, 4, 104)
    late = case.channel("late")
    assert (late.depth, late.cursor) == (0, 104)
    taker = Taker(channel)
    channel.serve()
    turn()
    assert taker.bodies == [b"a", b"b", b"c", b"d"]


def test_a_paused_topic_keeps_what_comes_and_so_does_one_whose_channels_are_not_complete() -> None:
    case = Case()
    channel = case.channel()
    case.topic.pause(True)
    case.publish(b"a")
    assert (case.topic.depth, channel.depth) == (1, 0)
    case.topic.pause(False)
    assert (case.topic.depth, channel.depth) == (0, 1)
    case.topic.await_channels()
    case.publish(b"b")
    assert (case.topic.depth, channel.depth) == (1, 1)
    case.topic.release()
    assert (case.topic.depth, channel.depth) == (0, 2)


def test_emptying_a_topic_drops_what_waits_there_and_nothing_of_its_channels() -> None:
    case = Case()
    channel = case.channel()
    case.publish(b"a")
    case.topic.pause(True)
    case.publish(b"b", b"c")
    case.port.events.clear()
    case.topic.empty()
    assert (case.topic.depth, channel.depth, case.topic.pumped) == (0, 1, 103)
    assert case.port.events[0] == Emptied(1, 101, 103)
    save = case.topic.snapshot()
    assert (save.pumped, save.emptied) == (103, ((101, 103),))
    case.topic.empty()
    assert case.topic.snapshot().emptied == ()
    case.topic.unsaved(save)
    assert case.topic.dirty
    assert case.topic.snapshot().emptied == ((101, 103),)
    case.topic.pause(False)
    case.publish(b"d")
    assert channel.depth == 2


def test_what_waits_too_long_in_a_topic_is_dropped_from_its_beginning() -> None:
    case = Case()
    assert case.topic.expire(100) == 0
    for ts in (10, 20, 30, 15):
        case.publish(b"x", b"y", ts=ts)
    assert case.topic.expire(10) == 0
    assert case.topic.expire(30) == 4
    assert (case.topic.depth, case.topic.pumped, case.topic.expired_count) == (4, 104, 4)
    assert case.topic.expire(30) == 0  # what is old behind what is not has its turn later
    assert case.topic.expire(31) == 4
    assert case.channel().depth == 0
    memory = Case("t#ephemeral")
    memory.topic.put_in_memory(Entry(1, payload(b"x"), 1))
    memory.topic.put_in_memory(Entry(1, payload(b"y"), 1))
    assert memory.topic.expire(1 << 62) == 2
    assert memory.topic.channel("c").depth == 0


def test_of_a_topic_in_memory_the_newer_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    case, times = Case("t#ephemeral"), iter([10, 20, 30])
    monkeypatch.setattr(topics, "time", SimpleNamespace(time_ns=lambda: next(times)))
    for _ in range(3):
        case.topic.put_in_memory(Entry(1, payload(b"x"), 1))
    assert case.topic.expire(20) == 1
    assert case.topic.channel("c").depth == 2


def test_who_waits_for_the_channels_of_a_topic_goes_on_when_it_is_deleted() -> None:
    case = Case()
    case.topic.complete.clear()
    case.topic.close()
    assert case.topic.complete.wait(5)


def test_an_ephemeral_topic_keeps_so_many_and_hands_them_to_its_first_channel() -> None:
    case = Case("t#ephemeral", next=0, pumped=0)
    for size in (3, 2, 1):
        case.topic.put_in_memory(Entry(1, payload(*[b"x"] * size), size))
    assert (case.topic.depth, case.topic.message_count) == (5, 6)
    channel = case.topic.channel("c")
    assert (case.topic.depth, channel.depth) == (0, 5)
    case.topic.put_in_memory(Entry(1, payload(b"more"), 1))
    assert channel.depth == 5  # nor does a channel hold more
    big = Case("t#ephemeral")
    big.topic.put_in_memory(Entry(1, payload(*[b"x"] * 9), 9))
    assert big.topic.depth == 9
    assert Declares not in case.kinds()


def test_an_ephemeral_channel_has_copies_of_what_waited_before_the_log_may_forget_it() -> None:
    case = Case()
    case.publish(b"a", b"b")
    case.publish(b"c")
    channel = case.topic.channel("c#ephemeral")
    assert (case.topic.pumped, channel.depth) == (100, 0)
    case.publish(b"d")
    turn()
    assert (case.topic.pumped, case.topic.depth, channel.depth, channel.message_count) == (104, 0, 4, 4)


def test_what_was_emptied_while_it_was_read_for_an_ephemeral_channel_does_not_come() -> None:
    case = Case()
    case.publish(b"a")
    channel = case.topic.channel("c#ephemeral")
    case.topic.empty()
    turn()
    assert (channel.depth, case.topic.depth) == (0, 0)
    case.publish(b"b")
    assert channel.depth == 1


def test_channels_are_said_when_they_come_and_go_and_ephemeral_ones_go_with_their_last_client() -> None:
    case = Case()
    channel = case.channel()
    assert case.port.events[0] == Made(case.topic, "c")
    assert Declares in case.kinds()
    taker = Taker(channel)
    channel.unsubscribe(taker)  # type: ignore[arg-type]
    case.topic.client_left(channel)
    assert list(case.topic.channels) == ["c"]
    short = case.topic.channel("s#ephemeral")
    assert Declares not in case.kinds()
    taker = Taker(short)
    case.topic.client_left(short)
    assert short.name in case.topic.channels
    short.unsubscribe(taker)  # type: ignore[arg-type]
    case.topic.client_left(short)
    assert list(case.topic.channels) == ["c"]
    assert Gone(case.topic, short.name) in case.port.events
    case.port.events.clear()
    case.topic.delete_channel("c")
    assert [type(one) for one in case.port.events] == [Declares, Gone]
    assert not channel.declared
    last = Case("t#ephemeral")
    last.topic.channel("a")
    last.topic.channel("b")
    last.topic.delete_channel("a")
    assert Deserted(last.topic) not in last.port.events
    last.topic.delete_channel("b")
    assert Deserted(last.topic) in last.port.events


def test_a_topic_says_all_that_it_has_where_that_is_little_and_else_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_FEW", 2)
    case = Case()
    for name in ("a", "b"):
        case.channel(name)
    assert set(case.topic.declaration().channels) == {"a", "b"}
    assert not case.topic.declaration().changes
    case.channel("c")
    said = case.topic.declaration()
    assert (said.changes, dict(said.channels), said.gone, said.total) == (True, {}, (), 3)
    case.topic.delete_channel("a")
    case.channel("d")
    case.topic.channels["b"].pause(True)
    said = case.topic.declaration()
    assert (list(said.channels), said.gone, said.total) == (["b"], (), 3)
    assert said.channels["b"].paused
    case.topic.recorded(100, said)
    assert not case.topic.declaration().changes  # more were named by now than there are
    case.declare()
    assert (case.topic.declaration().changes, case.topic.declaration().channels) == (True, {})
    case.topic.close()
    assert case.topic.declaration() == Declaration("t", 100, False, {}, dropped=True)


def test_a_channel_that_was_made_anew_under_its_name_is_not_the_one_that_was_declared() -> None:
    case = Case()
    old = case.topic.channel("c")
    said = case.topic.declaration()
    case.topic.delete_channel("c")
    new = case.topic.channel("c")
    case.topic.recorded(100, said)
    assert (old.declared, new.declared) == (False, False)
    case.declare()
    assert new.declared
    case.topic.recorded(100, Declaration("t", channels={"unknown": Declared(1, 100)}))


def test_its_numbers_begin_where_its_declaration_says_once() -> None:
    case = Case(next=0, pumped=0)
    channel = case.topic.channel("c")
    case.topic.recorded(500, case.topic.declaration())
    assert (case.topic.next, case.topic.pumped, channel.cursor) == (500, 500, 500)
    case.topic.start_at(900)
    assert case.topic.next == 500


def test_what_the_log_has_less_of_is_counted_where_it_waits() -> None:
    case = Case()
    channel = case.channel()
    case.publish(*[b"x"] * 5)
    case.topic.pause(True)
    case.publish(*[b"x"] * 4)
    case.topic.correct(Correction(1, 104, 107))
    assert case.topic.depth == 2
    case.topic.correct(Correction(1, 105, 109, there=True))
    assert case.topic.depth == 6
    case.topic.correct(Correction(1, 0, 999))
    assert case.topic.depth == 2
    case.topic.correct(Correction(1, 0, 999))
    assert case.topic.depth == 0
    assert channel.depth == 5  # these are at hand, or in the log lately


def test_of_a_topic_in_memory_alone_the_log_has_nothing_to_correct() -> None:
    case = Case("t#ephemeral")
    case.topic.depth = 3
    case.topic.correct(Correction(1, 0, 100, there=True))
    case.topic.pumped, case.topic.next = 0, 100
    case.topic.correct(Correction(1, 0, 100, there=True))
    assert case.topic.depth == 3


def test_what_the_log_has_less_of_is_told_the_channels_that_have_it_there(monkeypatch: pytest.MonkeyPatch) -> None:
    case, told = Case(), list[tuple[str, Correction]]()
    case.channel()
    case.channel("held#ephemeral")
    monkeypatch.setattr(Channel, "correct", lambda self, found: told.append((self.name, found)))
    lost = Correction(1, 100, 101, lost=True)
    case.topic.correct(lost)
    assert told == [("c", lost)]


def test_it_is_to_be_saved_once_until_it_was() -> None:
    case = Case()
    case.topic.touched()
    case.topic.touched()
    assert case.kinds() == [TopicChanged]
    case.topic.snapshot()
    case.topic.touched()
    assert case.kinds() == [TopicChanged]
    memory = Case("t#ephemeral")
    memory.topic.touched()
    assert memory.kinds() == []
    channel = case.channel()
    case.port.events.clear()
    channel.snapshot()
    channel.touched()
    channel.touched()
    assert case.kinds() == [ChannelChanged]
    undeclared = case.topic.channel("new")
    case.port.events.clear()
    undeclared.touched()
    assert case.kinds() == []


def test_a_declaration_that_failed_is_asked_for_again_by_who_waits_for_it() -> None:
    case = Case()
    case.topic.settle()
    done = Group()
    done.end(None)
    case.topic.declared = done
    case.topic.settle()
    assert case.kinds() == []
    failed = Group()
    failed.end(OSError("full"))
    case.topic.declared = failed
    with pytest.raises(Exception, match="full"):
        case.topic.settle()
    assert case.kinds() == [Declares]


def test_what_is_unfinished_is_what_waits_and_what_the_last_of_its_channels_has_not_done() -> None:
    case = Case()
    assert case.topic.unfinished == 0
    slow, quick = case.channel("slow"), case.channel("quick")
    case.publish(*[b"x"] * 4)
    taker = Taker(slow, ready=2)
    slow.serve()
    assert case.topic.unfinished == 4
    first, second = taker.leases.messages
    slow.requeue(taker, first, 60.0)  # type: ignore[arg-type]
    assert case.topic.unfinished == 4
    slow.finish(taker, second)  # type: ignore[arg-type]
    slow.serve()
    fast = Taker(quick)
    quick.serve()
    fast.finish()
    assert case.topic.unfinished == 3
    case.topic.pause(True)
    case.publish(b"y")
    assert case.topic.unfinished == 4
    slow.empty()


# --- a channel's start and end


def test_what_was_tried_before_a_restart_is_ready_or_waits_for_its_time_which_is_never_far() -> None:
    case = Case()
    retries = {97: Retry(1_000_001, 3), 95: Retry(0, 2), 96: Retry(1 << 50, 1), 98: Retry(1_000_000, 1)}
    channel = Channel(case.topic, case.port, ChannelState(7, "c", 100, retries=retries), declared=True)  # type: ignore[arg-type]
    assert [(one.seq, one.attempts, one.has_row) for one in channel.retries.ready] == [(95, 2, True), (98, 1, True)]
    assert sorted(one.seq for _, _, one in channel.deferred) == [96, 97]
    save = channel.snapshot()
    assert (save.put[95], save.put[97]) == (Retry(0, 2), Retry(1_000_001, 3))
    assert save.put[96].due == 1_000_000 + case.port.options.max_req_timeout * 1000
    channel.empty()
    save = channel.snapshot()
    assert (save.clear, save.put, channel.depth, channel.deferred) == (True, {}, 0, [])
