"""The end of a worker, by its parts: when what runs is given back, the steps in their order, middleware that does not yield."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.event import Event
from greenlet import GreenletExit

from framework.engine import lifetime, stopping, supervisor
from framework.engine.lifetime import Lifetime
from framework.engine.stopping import Stop
from framework.engine.supervisor import Supervisor
from framework.errors import BadHandler, BrokerRefuses, BrokerUnreachable
from framework.hooks import Middleware
from framework.transports.contract import GOODBYE
from tests.engine.conftest import make_spec


def bill(message: object) -> None: ...


class Stubborn(Middleware):
    def start(self) -> None:
        while True:
            try:
                gevent.sleep(60)
            except GreenletExit:
                continue


def test_middleware_that_does_not_let_itself_be_stopped_while_it_starts_is_not_taken_for_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifetime, "LAST", 0.01)
    stop, changed = Stop(1.0), Event()
    gevent.spawn_later(0.02, lambda: (stop.ask(False), changed.set()))
    assert not Lifetime([make_spec(bill, middleware=(Stubborn(),))]).start_unless(stop, changed)


def test_the_first_stop_gives_time_and_the_second_none(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: now[0]))
    stop = Stop(25.0)
    assert (stop.times, stop.now, stop.until) == (0, False, math.inf)
    stop.ask(False)
    assert (stop.times, stop.now, stop.until) == (1, False, 125.0)
    now[0] = 110.0
    stop.ask(False)
    assert (stop.times, stop.now, stop.until) == (2, True, 110.0)
    now[0] = 120.0
    stop.hurry()
    assert stop.until == 110.0
    at_once = Stop(25.0)
    at_once.ask(True)
    assert (at_once.times, at_once.now, at_once.until) == (1, True, 120.0)


class Steps:
    """The ``shutdown`` of a consumer, all of whose steps are done at once; it notes them."""

    deaf, handling, unheard, quiet, ended, goodbye = True, False, "", True, True, 0.0

    def __init__(self, said: list[str], name: str) -> None:
        self._said, self._name = said, name

    def __getattr__(self, step: str) -> Any:
        return lambda: self._said.append(f"{step} {self._name}")


def worker(*consumers: Any, connect_deadline: float | None = 30.0) -> tuple[Supervisor, list[str]]:
    made = Supervisor([], [object()], publish=lambda *_: None, connect_deadline=connect_deadline)  # type: ignore[list-item]
    said: list[str] = []
    made._consumers = list(consumers)
    return made, said


def test_all_handlers_stop_step_by_step() -> None:
    made, said = worker()
    made._consumers = [SimpleNamespace(shutdown=Steps(said, name)) for name in "ab"]  # type: ignore[misc]
    made._diallers = [SimpleNamespace(stop=lambda: said.append("stop dialling"))]  # type: ignore[list-item]
    made._stop.ask(False)
    made._drain(gevent.get_hub())
    made._end(gevent.get_hub())
    steps = ("drain", "give_back_unstarted", "abandon", "close")
    assert said == ["stop dialling", *(f"{step} {name}" for step in steps for name in "ab")]


def test_a_stop_asked_for_halts_all_handlers_at_once() -> None:
    made, said = worker()
    made._consumers = [SimpleNamespace(shutdown=Steps(said, name)) for name in "ab"]  # type: ignore[misc]
    assert not made.stopping
    assert made.time_left == math.inf
    made.stop()
    assert made.stopping
    assert said == ["halt a", "halt b"]
    assert 24.5 < made.time_left <= 25.0
    made.stop()
    assert made.time_left == 0.0


def test_a_goodbye_takes_as_long_as_the_slowest_handler_asks_for_and_the_usual_time_at_least() -> None:
    slow, quick = (SimpleNamespace(shutdown=SimpleNamespace(goodbye=seconds)) for seconds in (GOODBYE + 3, GOODBYE / 2))
    assert worker(slow, quick)[0]._goodbye == GOODBYE + 3
    assert worker(quick)[0]._goodbye == GOODBYE
    assert worker()[0]._goodbye == GOODBYE


@pytest.mark.parametrize("hurry", [True, False])
def test_a_wait_ends_when_all_are_ready_or_its_time_is_over_or_when_it_is_to_hurry(
    hurry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(supervisor, "gevent", SimpleNamespace(sleep=sleep))
    ready = SimpleNamespace(at=0.0)
    late = SimpleNamespace(at=101.0)
    made, _ = worker(ready, late)
    made._wait(lambda one: now[0] >= one.at, 5.0, hurry=hurry)  # type: ignore[attr-defined]
    assert now[0] == pytest.approx(101.0, abs=0.011)
    late.at = 1_000.0
    made._wait(lambda one: now[0] >= one.at, 5.0, hurry=hurry)  # type: ignore[attr-defined]
    assert now[0] == pytest.approx(106.0, abs=0.05)
    made._stop.hurry()
    made._wait(lambda one: now[0] >= one.at, 5.0, hurry=hurry)  # type: ignore[attr-defined]
    assert now[0] == pytest.approx(106.0 if hurry else 111.0, abs=0.1)


def handler(name: str, *, connected: bool = False, able: bool = False, refusal: Exception | None = None) -> Any:
    accounts = {"a:1": None} if connected else {}
    return SimpleNamespace(spec=SimpleNamespace(name=name), accounts=accounts, able=able, refusal=refusal)


def dialler(**more: Any) -> Any:
    known = {"refusal": None, "shut_out": None, "found_no_node": False, "error": None, "silent": [], "tried": True}
    return SimpleNamespace(**known | more)


def test_it_is_ready_when_every_handler_is_and_there_is_one() -> None:
    assert not worker()[0].ready
    assert worker(handler("a", able=True))[0].ready
    assert not worker(handler("a", able=True), handler("b"))[0].ready


def test_a_handler_that_can_never_work_ends_the_start() -> None:
    no, unfit = BrokerRefuses("wrong secret"), BadHandler("unfit")
    fine = dialler()
    for consumer, diallers, error in (
        (handler("a"), [fine, fine], None),
        (handler("a", refusal=unfit), [fine, fine], unfit),
        (handler("a"), [fine, dialler(refusal=unfit)], unfit),
        (handler("a"), [dialler(shut_out=no), fine], None),
        (handler("a"), [fine, dialler(shut_out=no)], None),
        (handler("a"), [dialler(shut_out=no), dialler(shut_out=BrokerRefuses("too"))], no),
    ):
        made, _ = worker(handler("first"), consumer)
        made._transports = [object(), object()]  # type: ignore[list-item]
        made._diallers = [fine, fine, *diallers]
        if error is None:
            made._check_refusals()
        else:
            with pytest.raises(type(error)) as raised:
                made._check_refusals()
            assert raised.value is error


def test_past_the_deadline_a_handler_without_a_connection_ends_the_start_unless_its_topic_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, _ = worker(handler("a", connected=True), handler("b"))
    made._diallers = [dialler(error=OSError("not this one")), dialler(found_no_node=True)]
    made._check_reached()
    assert "handler b: no node has the topic yet" in caplog.text
    for lacks, words in (
        (
            dialler(error=OSError("refused"), silent=["b:1", "c:1"]),
            "(refused; b:1 has not answered yet; c:1 has not answered yet); ",
        ),
        (dialler(), "(none has answered yet); start the broker, or check its URL"),
        (dialler(error=OSError(24, "Too many open files")), "(.*Too many open files.*)$"),
    ):
        made._diallers = [dialler(), lacks]
        with pytest.raises(BrokerUnreachable) as raised:
            made._check_reached()
        assert "handler b: no broker reached within 30 s " in str(raised.value)
        if words.endswith("$"):
            assert "start the broker" not in str(raised.value)
        else:
            assert words in str(raised.value)


def test_a_topic_that_one_of_several_brokers_lacks_is_waited_for_and_what_the_others_say_is_told_where_none_does() -> None:
    made, _ = worker(handler("a"))
    made._transports = [object(), object()]  # type: ignore[list-item]
    made._diallers = [dialler(error=OSError("refused")), dialler(found_no_node=True)]
    made._check_reached()
    made._diallers = [dialler(error=OSError("refused")), dialler(error=OSError("reset"))]
    with pytest.raises(BrokerUnreachable, match=r"\(refused; reset\); start the broker"):
        made._check_reached()


@pytest.mark.parametrize("heard", [True, False])
def test_what_was_settled_is_said_to_brokers_that_are_away_as_long_as_there_is_time(
    heard: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(stopping, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(supervisor, "gevent", SimpleNamespace(sleep=sleep))

    class Away(Steps):
        @property
        def unheard(self) -> str:  # type: ignore[override]
            return "a is down" if not heard or now[0] < 105.0 else ""

    made, said = worker()
    made._consumers = [SimpleNamespace(shutdown=Away(said, "a"), spec=SimpleNamespace(name="bill"))]  # type: ignore[list-item]
    made._stop.ask(False)
    made._drain(SimpleNamespace(loop=SimpleNamespace(run_callback=lambda call: call())))
    assert now[0] == pytest.approx(105.0 if heard else 125.0, abs=0.1)
    assert ("messages that were handled come again, because of (a is down)" in caplog.text) is not heard


@pytest.mark.parametrize(("seconds", "told"), [(0.0, []), (7.5, ["stood still for 7.5"])])
def test_timers_keep_leases_once_it_is_reported_what_was_kept_meanwhile(seconds: float, told: list[str]) -> None:
    """And before all, how long nothing could be kept: what came then must not be handed over."""
    made, said = worker()
    made._consumers = [SimpleNamespace(stood_still=lambda seconds: said.append(f"stood still for {seconds}"))]  # type: ignore[list-item]
    made._pulse = SimpleNamespace(keep_leases=lambda: said.append("keep"))  # type: ignore[assignment]
    made._keep(SimpleNamespace(report=lambda: said.append("report"), stood_still=lambda: seconds))  # type: ignore[arg-type]
    assert said == [*told, "report", "keep"]


def test_one_that_does_not_run_blocks_nothing_and_leaves_nothing_to_forget() -> None:
    made, _ = worker()
    made._diallers = [SimpleNamespace(stop=lambda: pytest.fail("it has no hub"))]  # type: ignore[list-item]
    assert (made.blocked, made.hub_thread) == (0.0, 0)
    made.forget()


def test_a_forked_child_of_one_that_runs_goes_on_with_nothing() -> None:
    made, said = worker()
    made._consumers = [SimpleNamespace(shutdown=Steps(said, "a"))]  # type: ignore[list-item]
    made._diallers = [SimpleNamespace(stop=lambda: said.append("stop dialling"))]  # type: ignore[list-item]
    made._timers = [SimpleNamespace(stop=lambda: said.append("stop timer"))]
    made._hub = SimpleNamespace(loop=None)  # it was destroyed
    made.forget()
    assert said == []
    made._hub = gevent.get_hub()
    made.forget()
    assert said == ["stop dialling", "forget a", "stop timer"]
