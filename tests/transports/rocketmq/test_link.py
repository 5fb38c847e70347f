"""What publishes over a session, on paper: what is asked of its broker, and when again, how much is under way, and what comes of
it without an answer; and the bounds of what a broker URL and a name may be."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import gevent
import pytest

from framework.errors import BadName, BadSetting, BrokerUnreachable, PublishError
from framework.transports.publish_link import NotStored, Refused
from framework.transports.rocketmq import publish_link, urls
from framework.transports.rocketmq.commands import Command, Commands
from framework.transports.rocketmq.publish_link import ROUTED, WINDOW, WINDOW_BYTES, PublishLink
from framework.transports.rocketmq.wire.codes import Answer
from framework.transports.rocketmq.wire.errors import error_of
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.test_commands import Paper, singles


class Home:
    """``publish_link.Broker``."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.asked: list[str] = []
        self.why = ""
        """It may not be written to."""
        self.fails: Exception | None = None

    def make(self, topic: str) -> None:
        if self.fails is not None:
            raise self.fails
        self.made.append(topic)

    def queues(self, topic: str) -> int:
        self.asked.append(f"queues {topic}")
        return 8

    def closed(self, topic: str) -> str:
        self.asked.append(f"closed {topic}")
        return self.why

    def has_timers(self) -> bool:
        self.asked.append("timers")
        if self.fails is not None:
            raise self.fails
        return True


class Held(Paper):
    """Answers when ``answer`` is called, ``ask`` apart."""

    def __init__(self) -> None:
        super().__init__(lambda number: None)
        self.thens: list[Any] = []
        self.given_up: list[int] = []
        self.proofs: list[float] = []
        self.proof: Exception | None = None

    def call(self, code: int, fields: dict[str, str], then: Any, *, body: bytes = b"") -> int:
        self.thens.append(then)
        return super().call(code, fields, then, body=body)

    def give_up(self, number: int) -> None:
        self.given_up.append(number)

    def ask(self, code: int, fields: dict[str, str], body: bytes, timeout: float) -> Frame:
        self.proofs.append(timeout)
        if self.proof is not None:
            raise self.proof
        return Frame(0)


def link(session: Any = None) -> tuple[PublishLink, Home, Any]:
    paper: Any = Paper(lambda number: Frame(0)) if session is None else session
    home = Home()
    return PublishLink("broker-a", paper, home), home, paper


def test_whether_there_are_timers_is_asked_once_and_only_for_a_delay() -> None:
    made, home, _ = link()
    made.ask_each(singles(1), 5.0)
    assert "timers" not in home.asked
    made.ask_each(singles(1, 3.0), 5.0)
    made.ask_each(singles(1, 3.0), 5.0)
    assert home.asked.count("timers") == 1


def test_where_the_broker_does_not_say_whether_it_has_timers_nothing_is_sent() -> None:
    made, home, paper = link()
    home.fails = BrokerUnreachable("gone")
    found = made.ask_each(singles(2, 3.0), 5.0)
    assert [type(one) for one in found] == [NotStored] * 2
    assert paper.requests == []


def test_whether_a_topic_may_be_written_to_is_asked_again_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made, home, paper = link()
    now = [monotonic()]
    monkeypatch.setattr(publish_link, "monotonic", lambda: now[0])
    assert made.ask_each(singles(2), 5.0) == [None, None]
    assert home.asked == ["closed t"]
    now[0] += ROUTED - 0.01
    made.ask_each(singles(1), 5.0)
    assert home.asked == ["closed t"]
    now[0] += 0.01
    home.why = "it is closed"
    made.ask_each(singles(1), 5.0)
    gevent.sleep(0)
    assert home.asked == ["closed t"] * 2
    sent = len(paper.requests)
    (refused,) = made.ask_each(singles(1), 5.0)
    assert (type(refused), str(refused), len(paper.requests)) == (Refused, "it is closed", sent)


def test_a_session_that_has_ended_sends_nothing() -> None:
    made, _, paper = link()
    paper.error = BrokerUnreachable("gone")
    assert made.error is paper.error
    assert [(type(one), str(one)) for one in made.ask_each(singles(2), 5.0)] == [(NotStored, "gone")] * 2
    assert paper.requests == []


@pytest.mark.parametrize(("error", "kind"), [(NotStored("later"), NotStored), (BrokerUnreachable("down"), PublishError)])
def test_a_topic_that_cannot_be_made_says_why(error: Exception, kind: type) -> None:
    made, home, _ = link()
    assert made._make(["a", "b"], 5.0) is None
    assert home.made == ["a", "b"]
    home.fails = error
    found = made._make(["c"], 5.0)
    assert type(found) is kind
    assert getattr(found, "stored", None) is (None if kind is NotStored else False)


def sent(paper: Held, commands: list[Command], timeout: float = 5.0) -> tuple[PublishLink, Any]:
    """Being published by a greenlet."""
    made, _, _ = link(paper)
    running = gevent.spawn(made.ask_each, commands, timeout)
    for _ in range(5):
        gevent.sleep(0)
    return made, running


def answer(paper: Held, *numbers: int) -> None:
    for number in numbers:
        gevent.get_hub().loop.run_callback(paper.thens[number], Frame(0), monotonic())
    for _ in range(3):
        gevent.sleep(0)


def test_so_many_are_under_way_at_a_time_and_more_when_half_of_them_are_answered() -> None:
    paper = Held()
    made, running = sent(paper, singles(2 * WINDOW + 5))
    assert len(paper.requests) == WINDOW
    assert made._owes
    answer(paper, *range(WINDOW // 2 - 1))
    assert len(paper.requests) == WINDOW
    answer(paper, WINDOW // 2 - 1)
    assert len(paper.requests) == WINDOW + WINDOW // 2
    answer(paper, *range(WINDOW // 2, WINDOW + WINDOW // 2))
    answer(paper, *range(WINDOW + WINDOW // 2, 2 * WINDOW))
    answer(paper, *range(2 * WINDOW, len(paper.thens)))
    assert running.get(timeout=5.0) == [None] * (2 * WINDOW + 5)
    assert not made._owes


@pytest.mark.parametrize(("size", "fits"), [(WINDOW_BYTES // 2, 2), (WINDOW_BYTES // 2 + 1, 1), (WINDOW_BYTES + 1, 1)])
def test_bodies_under_way_have_so_many_bytes_and_one_always_goes(size: int, fits: int) -> None:
    paper = Held()
    commands = Commands(1 << 30).singles("t", "there", [b"x" * size] * 3, {})
    _, running = sent(paper, commands)
    assert len(paper.requests) == fits
    while not running.dead:
        answer(paper, *range(len(paper.thens)))
        paper.thens = [lambda answer, at: None for _ in paper.thens] if running.dead else paper.thens
    assert running.get() == [None] * 3


def test_what_is_not_answered_in_time_is_not_known_and_given_up() -> None:
    paper = Held()
    _, running = sent(paper, singles(2), timeout=0.05)
    answer(paper, 0)
    found = running.get(timeout=5.0)
    assert found[0] is None
    assert (found[1].stored, "gave no answer for 0.1 s" in str(found[1])) == (None, True)
    assert paper.given_up == [2]


@pytest.mark.parametrize(("proof", "kind"), [
    (None, type(None)), (error_of(Frame(Answer.SYSTEM_ERROR)), type(None)), (BrokerUnreachable("silent"), BrokerUnreachable),
])  # fmt: skip
def test_a_broker_proves_itself_by_any_answer(proof: Exception | None, kind: type) -> None:
    paper = Held()
    paper.proof = proof
    made, _, _ = link(paper)
    assert type(made.prove(monotonic() + 2.0)) is kind
    made.prove(monotonic() - 2.0)
    assert 1.5 < paper.proofs[0] <= 2.0
    assert paper.proofs[1] == 0.0


# --- bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "least", "most", "below", "above"), [
    ("lease", "1s", "86400s", "999ms", "86401s"), ("poll", "100ms", "30s", "99ms", "30001ms"),
    ("answer_timeout", "500ms", "100s", "499ms", "100001ms"),
])  # fmt: skip
def test_times_have_bounds(name: str, least: str, most: str, below: str, above: str) -> None:
    for text in (least, most):
        urls.read([f"rocketmq://a?{name}={text}"])
    for text in (below, above):
        with pytest.raises(BadSetting, match=name):
            urls.read([f"rocketmq://a?{name}={text}"])


def test_a_mode_is_one_of_two() -> None:
    assert [urls.read([f"rocketmq://a?mode={mode}"]).options.mode for mode in ("pop", "pull")] == ["pop", "pull"]
    with pytest.raises(BadSetting, match="mode='push' in a broker URL: write pop or pull"):
        urls.read(["rocketmq://a?mode=push"])


def test_one_url_that_asks_for_tls_is_enough() -> None:
    assert urls.read(["rocketmq://a", "rocketmq+tls://b"]).options.tls
    assert not urls.read(["rocketmq://a", "rocketmq://b"]).options.tls


def test_an_at_sign_in_an_option_is_no_login() -> None:
    read = urls.read(["rocketmq://a?cluster=b@c"])
    assert (read.name_servers, read.secrets.access_key, read.options.cluster) == (("a:9876",), "", "b@c")
    assert urls.read(["rocketmq://k:s@a?cluster=b/c"]).secrets.secret == "s"


Check = Callable[[str], None]


@pytest.mark.parametrize(("check", "longest"), [
    (lambda name: urls.Names("n" * 64).accept(name, []), 62), (lambda name: urls.Names().accept_pull("t" * 64, [name]), 55),
])  # fmt: skip
def test_names_have_bounds(check: Check, longest: int) -> None:
    check("x" * longest)
    with pytest.raises(BadName, match=f"this has {longest + 1 + 65}"):
        check("x" * (longest + 1))


def test_a_channel_may_be_named_as_a_topic_of_rocketmqs() -> None:
    urls.Names().accept("orders", ["TBW102"])
    with pytest.raises(BadName, match="something of its own"):
        urls.Names().accept("TBW102", [])
