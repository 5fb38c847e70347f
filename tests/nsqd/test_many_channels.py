"""A topic with more channels than are named each time: what changes is written, and no kill, fault or lost index brings back what
was or hides what is."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.nsqd import topic as topics
from framework.nsqd.journal import NotStored
from framework.nsqd.store import Store, formats
from framework.nsqd.topic import Topic
from tests.nsqd.faults import refused_writes
from tests.nsqd.rounds import Nsqd, Taker, held, publish, starter
from tests.nsqd.storing import flip, killed, lose_index, segment

NAMES = "abcdefgh"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Nsqd]:
    monkeypatch.setattr(topics, "_FEW", 2)
    return starter(tmp_path, monkeypatch)


def channels(topic: Topic) -> dict[str, tuple[int, bool]]:
    return {one.name: (one.id, one.paused) for one in topic.channels.values()}


def stored(folder: Path) -> tuple[dict[str, dict[str, tuple[int, bool]]], list[str]]:
    """The channels by topic that a start finds, and its reports."""
    opened = Store(folder)
    found = {one.name: {each.name: (each.id, each.paused) for each in one.channels.values()} for one in opened.topics.values()}
    opened.close()
    return found, opened.reports


def test_what_many_channels_cost_grows_as_they_do(start: Callable[[], Nsqd]) -> None:
    nsqd = start()
    sizes = []
    for count in (100, 200):
        topic, before = nsqd.broker.topic(f"t{count}"), nsqd.store.log.size
        for at in range(count):
            topic.channel(f"c{at}")
            topic.settle()
        sizes.append(nsqd.store.log.size - before)
    assert nsqd.store.log.numbers == [1]
    assert sizes[1] < 2.5 * sizes[0]  # each naming all: four times


STEP = st.tuples(
    st.sampled_from(["channel", "delete", "pause", "unpause", "roll", "save", "refused", "pause topic", "look"]),
    st.sampled_from(NAMES),
)


@given(steps=st.lists(STEP, max_size=40), without_index=st.booleans())
@settings(max_examples=30)
def test_any_changes_are_found_after_a_kill(steps: list[tuple[str, str]], without_index: bool) -> None:
    with TemporaryDirectory() as folder, mock.patch.object(topics, "_FEW", 2), pytest.MonkeyPatch.context() as patch:
        nsqd = starter(Path(folder), patch)()
        topic = nsqd.broker.topic("t")
        for name in NAMES[:6]:
            topic.channel(name)
        topic.settle()
        for what, name in [*steps, ("look", "")]:
            if what != "look":
                change(nsqd, topic, what, name)
                continue
            settle(topic)
            with TemporaryDirectory() as copies:
                copy = killed(nsqd.store, nsqd.store.folder.path, Path(copies) / "copy")
                if without_index:
                    lose_index(copy)
                assert stored(copy) == ({"t": channels(topic)}, [])
        nsqd.broker._saver.kill()  # else it is waited for
        nsqd.broker.stop()


def settle(topic: Topic) -> None:
    """Also what was refused before is tried again."""
    with gevent.Timeout(20):
        while True:
            with suppress(NotStored):
                return topic.settle()


def change(nsqd: Nsqd, topic: Topic, what: str, name: str) -> None:
    if what == "channel":
        topic.channel(name)
    elif what == "roll":
        settle(topic)
        nsqd.store._roll()
    elif what == "save":
        nsqd.broker.save()
    elif what == "pause topic":
        topic.pause(not topic.paused)
    elif what == "refused":
        with refused_writes():
            gevent.sleep(0.003)  # what was asked for before is tried
    elif name in topic.channels:
        if what == "delete":
            topic.delete_channel(name)
        else:
            topic.channels[name].pause(what == "pause")


def test_a_channel_that_is_one_of_many_gets_what_is_published(start: Callable[[], Nsqd]) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    takers = [Taker(topic.channel(name)) for name in NAMES]
    topic.settle()
    late = Taker(topic.channel("late"))
    topic.settle()
    assert nsqd.store.folder.has_changes
    publish(nsqd.broker, topic, 3)
    assert all(len(one.ids(3)) == 3 for one in [*takers, late])


@pytest.mark.parametrize("what", ["another deleted", "paused and unpaused", "made, deleted and made"])
def test_what_changes_while_a_change_is_written_is_written_too(
    start: Callable[[], Nsqd], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    for name in NAMES:
        topic.channel(name)
    topic.settle()
    with held(nsqd.broker, monkeypatch):
        if what == "paused and unpaused":
            topic.channels["a"].pause(True)
        else:
            topic.channel("new")
        while nsqd.broker.journal._next:  # until it is taken to be written
            gevent.sleep(0)
        if what == "paused and unpaused":
            topic.channels["a"].pause(False)
        else:
            topic.delete_channel("a" if what == "another deleted" else "new")
        if what == "made, deleted and made":
            topic.channel("new")
    topic.settle()
    copy = killed(nsqd.store, nsqd.store.folder.path, tmp_path / "copy")
    lose_index(copy)
    assert stored(copy) == ({"t": channels(topic)}, [])


@pytest.mark.parametrize("anew", [False, True], ids=["for good", "and made anew"])
def test_a_topic_of_many_channels_that_is_deleted_is_gone_after_a_kill(
    start: Callable[[], Nsqd], tmp_path: Path, anew: bool
) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    for name in NAMES:
        topic.channel(name)
    topic.settle()
    nsqd.broker.delete_topic("t")
    topic.settle()
    if anew:
        nsqd.broker.topic("t").settle()
    for number, without_index in enumerate((False, True)):
        copy = killed(nsqd.store, nsqd.store.folder.path, tmp_path / f"copy{number}")
        if without_index:
            lose_index(copy)
        assert stored(copy) == ({"t": {}} if anew else {}, [])


def test_a_save_goes_on_while_a_change_is_taken(start: Callable[[], Nsqd]) -> None:
    """The thread that saves goes through the channels while another one appends: they do not change under it."""
    nsqd = start()
    topic = nsqd.broker.topic("t")
    for name in NAMES:
        topic.channel(name)
    topic.settle()
    there = iter(nsqd.store.topics[topic.id].channels.values())
    next(there)
    topic.delete_channel("h")
    topic.channel("late")
    topic.settle()
    assert [one.name for one in there] == list(NAMES[1:])


def test_a_folder_has_the_newer_format_from_the_first_of_these_on(start: Callable[[], Nsqd]) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    for name, number in zip(NAMES, [formats.FORMAT] * 2 + [formats.CHANGES] * 6, strict=True):
        topic.channel(name)
        topic.settle()
        assert json.loads((nsqd.store.folder.path / "meta.json").read_text())["format"] == number
    assert nsqd.killed().store.folder.has_changes


def test_ephemeral_channels_which_are_never_named_make_no_newer_format(start: Callable[[], Nsqd]) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    for name in NAMES:
        topic.channel(f"{name}#ephemeral")
    topic.channel("kept")
    topic.settle()
    topic.channel("another")
    topic.settle()
    assert not nsqd.store.folder.has_changes


@pytest.mark.parametrize("indexed", [True, False], ids=["behind the index", "without it"])
def test_channels_whose_names_are_damaged_are_said_to_be_unknown(
    start: Callable[[], Nsqd], tmp_path: Path, indexed: bool
) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    for name in NAMES[:4]:
        topic.channel(name)
    topic.settle()
    nsqd.broker.save()
    nsqd.broker._saver.kill()  # what follows is behind what the index knows
    for name in ("damaged", "whole"):
        topic.channel(name)
        topic.settle()
    copy = killed(nsqd.store, nsqd.store.folder.path, tmp_path / "copy")
    if not indexed:
        lose_index(copy)
    data = segment(copy).read_bytes()
    for at in (data.find(b"damaged"), data.rfind(b"damaged")):
        flip(segment(copy), at)
    found, reports = stored(copy)
    assert found["t"].keys() == {*NAMES[:4], "whole"}
    assert "the names of 1 channels of topic 't' are damaged: they are not known" in reports


def test_channels_that_are_back_because_their_end_is_damaged_are_told(start: Callable[[], Nsqd], tmp_path: Path) -> None:
    nsqd = start()
    topic = nsqd.broker.topic("t")
    for name in [*NAMES[:6], "damaged"]:
        topic.channel(name)
        topic.settle()
    topic.delete_channel("damaged")
    topic.settle()
    topic.channel("whole")
    topic.settle()
    copy = killed(nsqd.store, nsqd.store.folder.path, tmp_path / "copy")
    lose_index(copy)
    data = segment(copy).read_bytes()
    for at in (data.find(b'"gone":["damaged"]'), data.rfind(b'"gone":["damaged"]')):
        flip(segment(copy), at)
    found, reports = stored(copy)
    assert found["t"].keys() == {*NAMES[:6], "damaged", "whole"}
    assert "1 channels of topic 't' that were deleted are there again: the record that says which is damaged" in reports
