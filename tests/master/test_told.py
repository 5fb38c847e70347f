"""What a master tells of its processes: in the log, to systemd, and to a process that is started after an operator's act."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import BadSetting, BrokerUnreachable
from framework.master import master as of_master
from framework.master.master import LOOK, MARGIN, TRIES
from framework.systemd import Condition, Herald
from tests.master.test_steps import DRAIN, Led

Lead = Callable[..., Led]


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Lead:
    caplog.set_level(logging.INFO)
    return lambda **settings: Led(monkeypatch, **settings)


def said(caplog: pytest.LogCaptureFixture, *, level: int = logging.INFO) -> list[str]:
    """Since it was asked last."""
    found = [record.getMessage() for record in caplog.records if record.levelno >= level]
    caplog.clear()
    return found


def test_that_all_are_ready_is_said_with_what_they_may_do_in_sum_and_not_when_one_was_replaced(
    lead: Lead, caplog: pytest.LogCaptureFixture
) -> None:
    led = lead(processes=2)
    first, second = led.until_all_work()
    assert said(caplog) == [
        f"process 1 of 2 is at work: {first.pid}",
        f"process 2 of 2 is at work: {second.pid}",
        "handler orders/say: max_in_flight 2 x 20 = 40, concurrency 2 x 4 = 8",
        "all 2 processes are ready",
    ]
    second.due = "it has ended 10 messages (--max-tasks)"
    led.step()
    _, third = led.until_all_work()
    assert said(caplog) == [f"process 2 is {third.pid} now; {second.pid} drains: it has ended 10 messages (--max-tasks)"]
    led.master._resize(1)
    led.step()
    led.until_all_work()
    assert said(caplog)[-2:] == [
        "handler orders/say: max_in_flight 3 x 20 = 60, concurrency 3 x 4 = 12",
        "all 3 processes are ready",
    ]


def test_a_death_is_an_error_with_when_another_is_started_and_an_end_that_was_asked_for_is_not(
    lead: Lead, caplog: pytest.LogCaptureFixture
) -> None:
    led = lead(processes=1)
    [one] = led.until_all_work()
    said(caplog)
    one.end = "was killed by SIGKILL"
    one.ends(-9)
    led.step()
    assert said(caplog) == [f"process 1 ({one.pid}) was killed by SIGKILL; another is started"]
    [other] = led.until_all_work()
    said(caplog)
    other.ends(1)
    led.step()
    assert said(caplog) == [f"process 1 ({other.pid}) ended with exit status 0; another is started in 1 s"]
    led.master._seats[0].not_before = 0.0
    led.step()
    led.until_all_work()
    led.reload()
    [former] = led.at_work
    led.until_all_work()
    said(caplog)
    former.ends(0)
    led.step()
    assert said(caplog) == []
    [last] = led.at_work
    led.master._stop()
    said(caplog)
    last.ends(-9)
    led.step()
    assert said(caplog, level=logging.WARNING) == [f"{last.pid}, which was to end, ended with exit status 0"]


def test_what_changes_with_the_next_start_only_is_said_at_a_reload(lead: Lead, caplog: pytest.LogCaptureFixture) -> None:
    led = lead(processes=1)
    led.until_all_work()
    led.reload(drain=3.0)
    assert said(caplog, level=logging.WARNING) == []
    led.until_all_work()
    led.reload(admin="127.0.0.1:9464")
    assert said(caplog, level=logging.WARNING) == ["--admin stays off: it changes with the next start only"]


def test_a_reload_that_is_given_up_names_where_the_words_of_its_process_are(
    lead: Lead, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_master.logfile, "move_to", lambda path: None)
    led = lead(processes=1)
    led.until_all_work()
    for settings, where in (({}, "above"), ({"log_file": tmp_path / "new.log"}, f"in {tmp_path / 'new.log'}")):
        led.reload(**settings)
        led.starting[0].ends(2)
        led.step()
        assert said(caplog, level=logging.ERROR) == [
            f"not reloaded: the first new process ended with exit status 0, its words are {where}; the others go on as they are"
        ]


def test_the_lines_of_a_master_are_where_its_processes_write_from_a_reload_on_that_works(
    lead: Lead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[Path] = []
    monkeypatch.setattr(of_master.logfile, "move_to", moved.append)
    led = lead(processes=1, log_file=tmp_path / "old.log")
    led.until_all_work()
    assert (moved, led.logs) == ([], []), "at the start it was told so already"
    led.reload(log_file=tmp_path / "new.log")
    assert moved == []
    led.until_all_work()
    assert moved == [tmp_path / "new.log"]
    led.reload(log_file=None)
    assert moved == [tmp_path / "new.log"]


def test_a_process_of_a_reload_may_die_twice_and_one_that_is_ready_counts_anew(lead: Lead) -> None:
    led = lead(processes=1)
    for _ in range(2):
        led.until_all_work()
        led.reload()
        for _ in range(TRIES - 1):
            [died] = led.starting
            died.ends(-9)
            led.step()
            led.master._seats[0].not_before = 0.0
            led.step()
            assert [one is died for one in led.starting] == [False]
        assert led.master._reloading
    led.starting[0].ends(-9)
    led.step()
    assert (led.starting, led.master._reloading) == ([], False)


def test_a_reload_that_fails_goes_back_to_the_last_that_worked_and_not_to_the_start(lead: Lead) -> None:
    led = lead(processes=1)
    led.until_all_work()
    led.reload(processes=3)
    led.until_all_work()
    worked = led.wanted
    led.reload(processes=5)
    led.starting[0].ends(2)
    led.step()
    assert (led.master._settings, led.master._wanted, len(led.at_work), led.starting) == (worked, 3, 3, [])


@pytest.mark.parametrize("code", [1, 2, 3])
def test_a_start_that_cannot_work_is_the_end_of_all_with_the_status_of_its_process(lead: Lead, code: int) -> None:
    led = lead(processes=2)
    led.starting[0].ends(code)
    led.step()
    assert (led.master._over(), led.master._exit_code, len(led.started)) == (True, code, 1)


class Heard:
    """In the place of what tells systemd."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def reloading(self) -> None:
        self.said.append("reloading")

    def reloaded(self, words: str) -> None:
        self.said.append(words)

    def look(self) -> None:
        self.said.append("look")


def test_systemd_is_told_of_each_reload_and_how_it_ended(lead: Lead) -> None:
    led = lead(processes=1)
    led.until_all_work()
    heard: Any = Heard()
    led.master._herald = heard

    def told() -> list[str]:
        found = [words for words in heard.said if words != "look"]
        assert len(found) < len(heard.said), "it looks at each step"
        heard.said.clear()
        return found

    led.reload()
    led.until_all_work()
    assert told() == ["reloading", "reloaded"]
    assert led.master._condition().status == "1 of 1 processes at work; reloaded"
    led.reload()
    led.starting[0].ends(2)
    led.step()
    assert told() == ["reloading", "not reloaded: the first new process ended with exit status 0, its words are above"]

    def load() -> Any:
        raise BadSetting("--drain: no")

    led.master._load = load
    led.reload()
    assert told() == ["reloading", "not reloaded: --drain: no"]
    assert (len(led.at_work), led.starting, led.master._reloading) == (1, [], False)
    led.master._stop()
    led.reload()
    assert told() == [], "what stops is not reloaded"


def test_the_condition_of_a_master_is_that_of_its_processes(lead: Lead) -> None:
    led = lead(processes=2)
    condition = led.master._condition
    assert condition() == Condition(False, False, False, "0 of 2 processes at work")
    led.subscribe()
    assert condition() == Condition(False, False, False, "1 of 2 processes at work")
    first, second = led.until_all_work()
    assert condition() == Condition(True, False, False, "2 of 2 processes at work")
    first.report["stuck"] = ["the hub stands"]
    assert not condition().stuck, "it is replaced from here"
    second.report["stuck"] = ["the hub stands"]
    assert condition().stuck
    led.master._stop()
    assert condition() == Condition(True, True, False, "draining: 2 processes left")
    first.ends()
    led.step()
    assert condition().status == "draining: 1 processes left"


def test_there_is_one_process_where_nobody_says_how_many(lead: Lead) -> None:
    led = lead(processes=None)
    assert len(led.until_all_work()) == 1
    led.reload(processes=3)
    assert len(led.until_all_work()) == 3
    led.reload(processes=None)
    led.until_all_work()
    assert len(led.at_work) == 1


def test_systemd_hears_of_it_where_it_has_started_the_master(lead: Lead) -> None:
    led = lead(processes=1)
    assert led.master._herald is None
    notifier: Any = SimpleNamespace()
    made = of_master.Master(led.wanted, lambda: led.wanted, notifier)
    assert isinstance(made._herald, Herald)


def test_a_new_process_is_told_what_operators_have_asked_of_the_handlers(lead: Lead, monkeypatch: pytest.MonkeyPatch) -> None:
    led = lead(processes=1)
    pause = {"action": "pause", "handler": None, "value": None}
    source: Any = SimpleNamespace(commands=lambda: [pause], ended=lambda child: None)
    led.master._source = source
    told: list[Any] = []
    monkeypatch.setattr("tests.master.test_steps.StandIn.tell", lambda self, what: told.append((self.pid, what)), raising=False)
    led.until_all_work()
    led.reload()
    assert told == [(led.starting[0].pid, pause)]


def test_an_nsqd_that_ends_stops_all_at_once(lead: Lead) -> None:
    led = lead(processes=2)
    led.until_all_work()
    nsqd: Any = SimpleNamespace(ended=False)
    led.master._nsqd = nsqd
    led.step()
    every = led.at_work
    assert [one.told for one in every] == [[], []]
    nsqd.ended = True
    led.step()
    led.step()
    assert [one.told for one in every] == [[("stop", MARGIN, True)]] * 2


def test_how_long_a_process_says_nothing_is_counted_by_looks_and_not_over_a_time_in_which_none_was(
    lead: Lead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that slept, or a master that was suspended, has heard nothing of any."""
    led = lead(processes=1)
    [one] = led.until_all_work()
    one.silent, now = 0.0, led.master._looked
    monkeypatch.setattr(of_master.time, "monotonic", lambda: now)
    for passed, silent in ((LOOK, LOOK), (LOOK, 2 * LOOK), (3600.0, 4 * LOOK)):
        now += passed
        led.master._look()
        assert one.silent == pytest.approx(silent)


def test_a_stop_says_how_long_it_may_take(lead: Lead, caplog: pytest.LogCaptureFixture) -> None:
    led = lead(processes=2)
    led.until_all_work()
    said(caplog)
    led.master._stop()
    led.master._stop()
    assert said(caplog) == [
        f"stopping 2 processes; running handlers may take up to {DRAIN:g} s more",
        "stopping 2 processes; what runs is given back",
    ]
    for one in list(led.started):
        one.ends()
    led.step()
    led.master._stop()
    assert said(caplog) == []


@pytest.mark.parametrize("ended", [True, False])
def test_a_master_ends_as_its_nsqd_does_and_writes_the_books_before(
    ended: bool, lead: Lead, monkeypatch: pytest.MonkeyPatch
) -> None:
    led, written = lead(processes=1, ledger=Path("ledger.json")), []
    monkeypatch.setattr(of_master.books, "write", lambda *books: written.append(books))
    monkeypatch.setattr(of_master, "embedded_nsqd", lambda _: nullcontext(SimpleNamespace(ended=ended, url="nsq://127.0.0.1:1")))
    monkeypatch.setattr(led.master, "_heed_signals", lambda: None)
    monkeypatch.setattr(led.master, "_over", lambda: True)
    led.master._exit_code, led.master._ledgers, led.master._published = 3, {"a/b": {}}, {"a/b": {"c": 1}}
    if ended:
        with pytest.raises(BrokerUnreachable, match=r"the embedded nsqd on .* has ended"):
            led.master.run()
    else:
        assert led.master.run() == 3
    assert written == [({"a/b": {}}, {"a/b": {"c": 1}}, Path("ledger.json"))]
