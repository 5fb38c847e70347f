"""Running calls are known by their messages, and how batches fill. In milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from framework.engine import running as runs
from framework.engine.batches import BatchQueue
from framework.engine.running import RunningCalls
from framework.errors import AlreadySettled
from framework.message import Message


class Line:
    node, topic = "a:1", "orders"

    def __init__(self) -> None:
        self.in_flight: dict[Message, float] = {}
        self.touched: list[Message] = []

    def touch(self, message: Message) -> None:
        if message.settled:
            raise AlreadySettled("gone")
        self.touched.append(message)


def running(line: Line, *, remote: bool = False) -> tuple[RunningCalls, list[Message], list[Any]]:
    """Message 0 runs since 100, messages 1 and 2 in one call since 103, 3 in a thread (if ``remote``), 4 nowhere."""
    messages = [Message(b"%d" % number, 0, 1, b"", line) for number in range(5)]
    line.in_flight = dict.fromkeys(messages, 0.0)
    busy = [SimpleNamespace(job=messages[0], started=100.0), SimpleNamespace(job=messages[1:3], started=103.0)]
    slots: Any = SimpleNamespace(busy=lambda: iter(busy), computing=True)
    calls = [SimpleNamespace(job=messages[3], started=104.0, thread=77), SimpleNamespace(job=None, started=0.0, thread=0)]
    elsewhere: Any = SimpleNamespace(running=lambda: calls) if remote else None
    said: list[Any] = []
    hub = SimpleNamespace(loop=SimpleNamespace(run_callback_threadsafe=lambda *call: said.append(call)))
    return RunningCalls(hub, 10.0, slots, elsewhere), messages, said


@pytest.mark.parametrize("remote", [True, False])
def test_what_runs_is_known_by_its_message(remote: bool) -> None:
    line = Line()
    calls, messages, _ = running(line, remote=remote)
    ends = [calls.ends_at(one) for one in messages]
    assert ends == [110.0, 113.0, 113.0, 114.0 if remote else None, None]
    assert calls.messages() == set(messages[:3])
    assert calls.threads == ([77] if remote else [])
    assert len(calls.calls()) == 2
    assert calls.computing
    assert calls.expired(110.0) == set()
    assert calls.expired(110.1) == {messages[0]}
    assert calls.expired(113.1) == set(messages[:3])
    assert not calls.lost(messages[0])
    line.in_flight.clear()
    assert [calls.lost(one) for one in messages] == [True, True, True, remote, False]


def test_a_touch_from_another_thread_is_the_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()
    calls, messages, said = running(line)
    calls.touch(messages[0])
    assert (line.touched, said) == ([messages[0]], [])
    monkeypatch.setattr(runs, "_get_ident", lambda: -1)
    calls.touch(messages[1])
    assert line.touched == [messages[0]]
    ((touch, message),) = said
    touch(message)
    assert line.touched == messages[:2]
    del line.in_flight[messages[1]]
    touch(message)  # it was settled meanwhile: there is nobody to tell
    with pytest.raises(AlreadySettled):
        calls.touch(messages[1])


# --- batches that fill


class Filling:
    """The queue of batches of three that linger for 5 s, with a timer that is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.timers: list[float | None] = []
        self.closed: list[float] = []
        self.ready = 0
        monkeypatch.setattr("framework.engine.batches.Countdown", self._countdown)
        self.queue = BatchQueue(SimpleNamespace(loop=None), 3, 5.0, self._is_ready)

    def _is_ready(self) -> None:
        self.ready += 1

    def _countdown(self, _loop: object, seconds: float) -> Any:
        def start(call: Callable[[], None]) -> None:
            self.ring = call
            self.timers.append(seconds)

        return SimpleNamespace(start=start, stop=lambda: self.timers.append(None), close=lambda: self.closed.append(seconds))

    def put(self, *numbers: int) -> list[Message]:
        found = [Message(b"%d" % number, 0, 1, b"", number) for number in numbers]  # each of a connection of its own
        self.queue.extend(found)
        return found


def test_a_batch_is_there_when_it_is_full_or_has_waited_from_its_first_message_on(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Filling(monkeypatch)
    some.put(1)
    some.put(2)
    assert some.timers == [None, 5.0]  # the second does not begin it anew
    assert (bool(some.queue), len(some.queue)) == (False, 2)
    some.put(3, 4)
    assert some.queue
    assert [one.id for one in some.queue.popleft()] == [b"1", b"2", b"3"]
    assert not some.queue
    assert some.timers == [None, 5.0, None, 5.0]
    some.ring()
    assert (bool(some.queue), some.ready) == (True, 1)
    assert [one.id for one in some.queue.popleft()] == [b"4"]
    assert not some.queue
    assert some.timers[4:] == [None]
    some.ring()  # it had rung already
    assert not some.queue


def test_what_is_taken_out_of_a_batch_waits_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Filling(monkeypatch)
    first, second = some.put(1, 2)
    some.ring()
    some.queue.remove(first)
    assert some.queue
    some.queue.remove(second)
    assert not some.queue
    with pytest.raises(ValueError, match="not in"):
        some.queue.remove(second)
    some.put(3)
    some.ring()
    some.queue.clear()
    assert (bool(some.queue), len(some.queue)) == (False, 0)


def test_a_batch_waits_for_no_longer_than_its_messages_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Filling(monkeypatch)
    some.put(1)
    some.queue.wait_at_most(5.0)
    assert some.timers == [None, 5.0]
    some.queue.wait_at_most(2.0)
    assert some.timers[2:] == [None, 2.0]
    assert some.closed == [5.0]
    some.queue.wait_at_most(3.0)
    assert len(some.timers) == 4
    some.queue.close()
    assert some.closed == [5.0, 2.0]


def test_a_batch_is_of_a_connection_whose_messages_have_a_chain_of_their_own_when_one_of_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = Filling(monkeypatch)
    some.put(1, 2, 3, 4)
    assert some.queue.popleft().connection is None
    some.queue.apart |= {5, 6}  # type: ignore[arg-type]
    some.put(6, 5)
    assert some.queue.popleft().connection == 6
    some.put(7)
    assert some.queue.popleft().connection is None
