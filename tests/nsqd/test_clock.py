"""When deferred messages come after a restart: never later than their delay, whatever the wall clock was set to."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.nsqd.broker import Broker
from framework.nsqd.options import parse
from framework.nsqd.store import Entry, Retry, Store, TopicSave, clock
from framework.nsqd.store.clock import CREDIBLE_SECONDS, Clock
from tests.nsqd.storing import TOPIC, declared, payload, publish, saved

HOUR = 3_600_000
YEARS = 10 * 365 * 24 * HOUR
Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Sets the machine's clocks: ``machine(wall=ms, boot="a", up=ms)``."""

    def set_to(*, wall: int, boot: str = "a", up: int = 0) -> None:
        monkeypatch.setattr(clock, "_wall", lambda: wall)
        monkeypatch.setattr(clock, "_boot", lambda: (boot, up))

    set_to(wall=1000 * HOUR)
    return set_to


def test_clocks_are_read_in_whole_milliseconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 5_999_999)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda which: {time.CLOCK_BOOTTIME: 7_000_000_000_001}[which])
    (tmp_path / "boot").write_text(" this one\n")
    monkeypatch.setattr(clock, "_BOOT", tmp_path / "boot")
    assert (clock._wall(), clock._boot()) == (5, ("this one", 7_000_000))


@pytest.mark.parametrize("lacks", ["the file", "the clock"])
def test_where_the_kernel_says_nothing_of_its_boot_none_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lacks: str
) -> None:
    if lacks == "the file":
        monkeypatch.setattr(clock, "_BOOT", tmp_path / "boot")
    else:
        monkeypatch.delattr(time, "clock_gettime_ns")
    assert clock._boot() == ("", 0)


@pytest.mark.parametrize(
    ("then", "passed"),
    [
        ((1002 * HOUR, "a", 2 * HOUR), 2 * HOUR),
        ((1000 * HOUR + YEARS, "a", 2 * HOUR), 2 * HOUR),
        ((1, "a", 2 * HOUR), 2 * HOUR),
        ((1002 * HOUR, "b", 0), 2 * HOUR),
        ((1000 * HOUR + YEARS, "b", 0), 0),
        ((1000 * HOUR + CREDIBLE_SECONDS * 1000 + 1, "b", 0), 0),
        ((1, "b", 0), 0),
        ((1002 * HOUR, "", 0), 2 * HOUR),
    ],
    ids=[
        "the same boot", "set ahead by years", "set back by years", "another boot", "and set ahead by years",
        "and set ahead by a little too much", "and set back by years", "no boot to be known",
    ],
)  # fmt: skip
def test_a_restart_counts_what_has_passed(machine: Machine, tmp_path: Path, then: tuple[int, str, int], passed: int) -> None:
    wall, boot, up = then
    if not boot:
        machine(wall=1000 * HOUR, boot="")
    before = Clock(tmp_path / "clock")
    before.keep()
    kept = before.now()
    machine(wall=wall, boot=boot, up=up)
    said = clock._load(tmp_path / "clock")
    assert said is not None
    assert clock._passed(said) == passed
    assert abs(Clock(tmp_path / "clock").now() - kept - passed) < 60_000


@pytest.mark.parametrize(("boot", "lead"), [("a", 300_000), ("", 100_000)])
def test_how_far_the_wall_clock_leads_is_told_by_the_kernels(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, boot: str, lead: int
) -> None:
    machine(wall=600_000, boot=boot, up=300_000)
    monkeypatch.setattr(clock.time, "monotonic", lambda: 500.0)
    assert clock._lead() == lead


def test_when_the_wall_clock_was_set_ahead_is_known_while_it_runs_and_after_it(machine: Machine, tmp_path: Path) -> None:
    """By more than a second: adjusting it moves it by less. Setting it back makes nothing old."""
    running = Clock(tmp_path / "clock")
    for wall in (1000 * HOUR + 1000, 1000 * HOUR - YEARS, 1000 * HOUR - YEARS + 1000):
        machine(wall=wall)
        assert running.set_ahead() == 0
    running.keep()
    machine(wall=1000 * HOUR - YEARS + 2001)
    said = running.set_ahead()
    assert 0 <= running.now() - said < 60_000
    assert running.is_to_be_kept
    machine(wall=1000 * HOUR - YEARS + 2100)
    assert running.set_ahead() == said
    running.keep()
    assert Clock(tmp_path / "clock").set_ahead() == said


@pytest.mark.parametrize(
    ("boot", "wall", "was_set"),
    [
        ("a", 1001 * HOUR + 1000, False),
        ("a", 1001 * HOUR + 1001, True),
        ("a", 1000 * HOUR, False),
        ("b", 1000 * HOUR + CREDIBLE_SECONDS * 1000, False),
        ("b", 1000 * HOUR + CREDIBLE_SECONDS * 1000 + 1, True),
        ("b", 1, False),
    ],
    ids=["an adjustment", "set by more", "set back", "another boot", "of which so much is not credible", "set back before it"],
)
def test_whether_it_was_set_ahead_between_two_runs(machine: Machine, tmp_path: Path, boot: str, wall: int, was_set: bool) -> None:
    """The first was kept after three hours of its boot, and the second begins an hour later."""
    machine(wall=1000 * HOUR, up=3 * HOUR)
    Clock(tmp_path / "clock").keep()
    machine(wall=wall, boot=boot, up=4 * HOUR)
    again = Clock(tmp_path / "clock")
    said = again.set_ahead()
    assert said == (int(again._start) if was_set else 0)


def test_it_goes_as_the_monotonic_clock_does(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = 5.0
    monkeypatch.setattr(time, "monotonic", lambda: at)
    running = Clock(tmp_path / "clock")
    assert running.now() == 1000 * HOUR
    at += 2.5
    assert running.now() == 1000 * HOUR + 2500
    machine(wall=1001 * HOUR)
    assert running.wall(1000 * HOUR + 2600) == 1001 * HOUR + 100


@pytest.mark.parametrize(("gone", "passed"), [
    (-1, 0), (0, 0), (1, 1), (CREDIBLE_SECONDS * 1000, CREDIBLE_SECONDS * 1000), (CREDIBLE_SECONDS * 1000 + 1, 0),
])  # fmt: skip
@pytest.mark.parametrize("boot", ["a", "b", ""])
def test_what_has_passed_since_it_was_kept_is_counted_to_the_millisecond(
    machine: Machine, tmp_path: Path, boot: str, gone: int, passed: int
) -> None:
    """By the kernel's clock on the same boot, else by the wall clock."""
    machine(wall=1000 * HOUR, boot="a", up=7 * HOUR)
    Clock(tmp_path / "clock").keep()
    machine(wall=1000 * HOUR + gone, boot=boot, up=7 * HOUR + gone)
    kept = clock._load(tmp_path / "clock")
    assert kept is not None
    assert Clock(tmp_path / "clock")._start == kept.ours + passed


def test_where_no_boot_is_known_hours_that_passed_are_no_clock_that_was_set(machine: Machine, tmp_path: Path) -> None:
    machine(wall=1000 * HOUR, boot="")
    Clock(tmp_path / "clock").keep()
    machine(wall=1002 * HOUR, boot="")
    assert Clock(tmp_path / "clock").set_ahead() == 0


def test_a_clock_that_was_set_ahead_just_before_it_is_kept_is_kept_so(machine: Machine, tmp_path: Path) -> None:
    running = Clock(tmp_path / "clock")
    machine(wall=1001 * HOUR)
    running.keep()
    kept = clock._load(tmp_path / "clock")
    assert kept is not None
    assert 1000 * HOUR <= kept.set_ahead <= 1000 * HOUR + 60_000


def test_a_folder_that_has_gone_keeps_no_clock(machine: Machine, tmp_path: Path) -> None:
    Clock(tmp_path / "gone" / "clock").keep()
    assert list(tmp_path.iterdir()) == []


def test_setting_the_wall_clock_moves_nothing_that_waits(machine: Machine, tmp_path: Path) -> None:
    running = Clock(tmp_path / "clock")
    before = running.now()
    machine(wall=1)
    assert 0 <= running.now() - before < 60_000
    assert abs(running.wall(before + HOUR) - HOUR) < 60_000, "what is said to others is by the wall clock"


@pytest.mark.parametrize("damage", [b"", b"no clock", b'00000000 {"ours":1,"wall":1,"boot":"","up":1}', None])
def test_a_clock_that_is_lost_or_damaged_begins_at_the_wall_clock(machine: Machine, tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "clock"
    Clock(path).keep()
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    machine(wall=2000 * HOUR)
    assert 0 <= Clock(path).now() - 2000 * HOUR < 60_000


def test_it_is_to_be_kept_at_once_and_every_ten_minutes_also_on_a_machine_that_has_just_been_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 5.0
    monkeypatch.setattr(time, "monotonic", lambda: at)
    running = Clock(tmp_path / "clock")
    assert running.is_to_be_kept
    running.keep()
    assert not running.is_to_be_kept
    at += clock._KEPT_SECONDS
    assert not running.is_to_be_kept
    at += 1
    assert running.is_to_be_kept


def test_a_clock_that_cannot_be_kept_leaves_the_one_from_before(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "clock"
    running = Clock(path)
    running.keep()
    before = path.read_bytes()

    def refused(*_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refused)
        running.keep()
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [before]


def waits(folder: Path) -> list[float]:
    """In how many seconds what is deferred comes; negative: it is there."""
    broker = Broker(Store(folder), parse([f"--data-path={folder}"]), lambda level, words: None)
    try:
        channel = broker.topics["t7"].channels["c"]
        channel.offer_stored(0)  # has it look at the log
        for _ in range(500):
            if not channel.backlog.waiting:
                break
            time.sleep(0)
            broker.read(TOPIC, 0, 1)
        return sorted([entry[0] - time.monotonic() for entry in channel.deferred] + [-1.0] * channel.depth)
    finally:
        broker.stop()


def build(folder: Path, seconds: float) -> None:
    """A message that was requeued and one that was published with a delay."""
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    due = int(opened.clock.now() + seconds * 1000)
    (batch,) = publish(opened, b"requeued")
    opened.append([Entry(TOPIC, payload(b"deferred"), 1, due)])
    opened.save([TopicSave(TOPIC, opened.topics[TOPIC].next)], [saved(batch.end, put={batch.first: Retry(due, 1)})])
    opened.close()


@pytest.mark.parametrize("wall", [1, 1000 * HOUR + YEARS], ids=["back", "ahead"])
@pytest.mark.parametrize("boot", ["a", "b"], ids=["on the same boot", "after another"])
def test_a_clock_that_is_set_by_years_neither_holds_nor_releases(machine: Machine, folder: Path, wall: int, boot: str) -> None:
    build(folder, 1800)
    machine(wall=wall, boot=boot)
    for _ in range(2):
        found = waits(folder)
        assert len(found) == 2
        assert all(1500 < one <= 1800 for one in found)


def test_what_became_due_while_nothing_ran_comes_at_once(machine: Machine, folder: Path) -> None:
    build(folder, 1800)
    machine(wall=1001 * HOUR, boot="b")
    assert waits(folder) == [-1.0, -1.0]


@pytest.mark.parametrize("lost", ["the clock", "nothing"])
def test_nothing_waits_longer_than_the_longest_delay_after_a_restart(machine: Machine, folder: Path, lost: str) -> None:
    """A due time of another clock, or with a flipped bit."""
    build(folder, 1800 if lost == "the clock" else YEARS / 1000)
    if lost == "the clock":
        (folder / "clock").unlink()
        machine(wall=1)
    found = waits(folder)
    assert len(found) == 2
    assert all(3000 < one <= 3600 for one in found)
