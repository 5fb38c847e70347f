"""What is asked of dead letters over HTTP, on brokers in memory and without a worker: whose, how many, and what is told of it."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from framework.admin import letters as of_letters
from framework.admin.letters import Letters
from framework.admin.requests import Refused, Request
from framework.errors import BrokerUnreachable, WrongUse
from framework.message import Message
from framework.middleware.dead_letter import letters as dead
from framework.transports import open_transports
from framework.transports.memory import MemoryBroker, add, forget

NAME, TOPIC = "orders/bill", "orders.bill.dead"
_numbers = itertools.count()


@pytest.fixture
def brokers() -> Iterator[list[MemoryBroker]]:
    """Two, as a worker may have."""
    made = [MemoryBroker(f"asked-{next(_numbers)}") for _ in range(2)]
    for one in made:
        add(one)
    yield made
    for one in made:
        forget(one.name)


@pytest.fixture
def asked(brokers: list[MemoryBroker]) -> Letters:
    handlers = [{"topic": "orders", "channel": "bill", "handler": NAME}, {"topic": "a", "channel": "b", "handler": "a/b"}]
    transports = [transport for one in brokers for transport in open_transports([one.url])]
    latest: Any = partial(dict, handlers=handlers)
    return Letters(lambda: transports, latest)


def put(broker: MemoryBroker, *bodies: bytes, topic: str = TOPIC, traceback: str = "") -> None:
    origin: Any = SimpleNamespace(topic="orders", channel="bill", node="a:4150")
    for number, body in enumerate(bodies):
        message = Message(b"%016x" % number, 1_700_000_000_000_000_000, 4, body, origin)
        broker.store(topic, [next(dead(message, "ValueError: odd", traceback))], 0.0, None)


def get(asked: Letters, path: str, **query: str) -> Any:
    return json.loads(asked.paths[path](Request("GET", path, query)).body)  # type: ignore[arg-type]


def post(asked: Letters, path: str, **body: Any) -> Any:
    request = Request("POST", path, body=json.dumps({"name": NAME, **body}).encode(), remote="10.0.0.1")
    return json.loads(asked.changes[path](request).body)  # type: ignore[arg-type]


def waiting(brokers: list[MemoryBroker], topic: str = TOPIC) -> list[int]:
    return [len(one.waiting(topic)) for one in brokers]


def test_letters_of_all_brokers_are_counted_those_of_its_handlers_also_where_there_are_none(
    asked: Letters, brokers: list[MemoryBroker]
) -> None:
    put(brokers[0], b"1", b"2")
    put(brokers[1], b"3")
    put(brokers[1], b"4", b"5", topic="other.handler.dead")
    put(brokers[1], b"6", b"7", topic="another.handler.dead")
    assert [(row["dead_topic"], row["handler"], row["letters"]) for row in get(asked, "/api/dead")] == [
        (TOPIC, NAME, 3), ("another.handler.dead", None, 2), ("other.handler.dead", None, 2), ("a.b.dead", "a/b", 0),
    ]  # fmt: skip


def test_a_look_takes_nothing_and_shows_as_many_as_are_asked_for(asked: Letters, brokers: list[MemoryBroker]) -> None:
    for one in brokers:
        put(one, *[b"%d" % number for number in range(40)])
    assert len(get(asked, "/api/dead/letters", name=NAME)["letters"]) == of_letters.SHOWN
    found = get(asked, "/api/dead/letters", name=NAME, limit="1000")
    assert (len(found["letters"]), found["cut_short"]) == (80, "")
    assert found["letters"][0].keys() >= {"dead_topic", "id", "reason", "size"}
    assert "body" not in found["letters"][0]
    ids = f"{3:016x},{5:016x}"
    some = get(asked, "/api/dead/letters", name=NAME, id=ids, bodies="true")["letters"]
    assert sorted(row["body"] for row in some) == ["3", "3", "5", "5"]
    assert waiting(brokers) == [40, 40]
    for limit in ("1001", "0"):
        with pytest.raises(Refused, match="limit"):
            get(asked, "/api/dead/letters", name=NAME, limit=limit)


def test_of_a_long_body_the_beginning_is_shown_and_of_a_long_traceback_the_end(
    asked: Letters, brokers: list[MemoryBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_letters, "BODY", 8)
    put(brokers[0], b"begin and end", traceback="Traceback\n  of it\nthe end.")
    put(brokers[0], b"exactly8", b"\xff" * 30)
    long, exact, binary = get(asked, "/api/dead/letters", name=NAME, bodies="true")["letters"]
    assert (long["body"], long["cut"], long["size"], long["traceback"]) == ("begin an", True, 13, "the end.")
    assert (exact["body"], "cut" in exact) == ("exactly8", False)
    assert (len(binary["body_base64"]), binary["cut"]) == (8, True)
    assert "body_base64" not in get(asked, "/api/dead/letters", name=NAME)["letters"][2]


def test_a_replay_takes_from_all_brokers_and_says_what_it_did(
    asked: Letters, brokers: list[MemoryBroker], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for one in brokers:
        put(one, b"1", b"2", b"3")
    would = post(asked, "/api/dead/replay", dry_run=True)
    assert would == {"replayed": 6, "failed": 0, "why": "", "to": ["orders"], "kept": 6, "dry_run": True}
    assert (waiting(brokers), caplog.records) == ([3, 3], [])
    done = post(asked, "/api/dead/replay", ids=[f"{1:016x}"], to="elsewhere")
    assert done == {"replayed": 2, "failed": 0, "why": "", "to": ["elsewhere"], "kept": 4, "dry_run": False}
    assert (waiting(brokers), waiting(brokers, "elsewhere")) == ([2, 2], [1, 1])
    assert caplog.records[-1].getMessage() == f"admin: 10.0.0.1: replayed 2 dead letters of {NAME} to elsewhere"


def test_letters_that_no_broker_takes_stay_and_the_first_says_why(asked: Letters, brokers: list[MemoryBroker]) -> None:
    put(brokers[0], b"1", b"too long for it")
    put(brokers[1], b"2", b"3")
    brokers[0].max_size = 5
    done = post(asked, "/api/dead/replay", limit=9)
    assert (done["replayed"], done["failed"], done["kept"]) == (3, 1, 0)
    assert "has 15 bytes" in done["why"]
    assert waiting(brokers) == [1, 0]


def test_a_purge_must_say_what_it_means_and_says_what_it_did(
    asked: Letters, brokers: list[MemoryBroker], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for one in brokers:
        put(one, b"1", b"2", b"3")
    with pytest.raises(Refused, match='say "all": true'):
        post(asked, "/api/dead/purge")
    assert post(asked, "/api/dead/purge", dry_run=True) == {"purged": 6, "why": "", "kept": 6, "dry_run": True}
    assert (waiting(brokers), caplog.records) == ([3, 3], [])
    assert post(asked, "/api/dead/purge", ids=[f"{1:016x}"]) == {"purged": 2, "why": "", "kept": 4, "dry_run": False}
    assert caplog.records[-1].getMessage() == f"admin: 10.0.0.1: purged 2 dead letters of {NAME}"
    assert post(asked, "/api/dead/purge", all=True)["purged"] == 4
    assert waiting(brokers) == [0, 0]


@pytest.mark.parametrize("path", ["/api/dead/replay", "/api/dead/purge", "/api/dead/letters"])
def test_that_not_all_letters_could_be_met_is_said(
    path: str, asked: Letters, brokers: list[MemoryBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Short(of_letters.Sweep):
        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            self.cut_short = f"one of {len(shorts)} is in other hands"
            shorts.append(self)

    shorts: list[Short] = []
    monkeypatch.setattr(of_letters, "Sweep", Short)
    for one in brokers:
        put(one, b"1")
    if path.endswith("letters"):
        words = get(asked, path, name=NAME)["cut_short"]
        assert words == "one of 0 is in other hands; one of 1 is in other hands"
    else:
        assert post(asked, path, all=True)["why"] == "one of 0 is in other hands"


def test_one_at_a_time_holds_letters_and_the_next_may_when_it_is_done(asked: Letters, brokers: list[MemoryBroker]) -> None:
    put(brokers[0], b"1")
    for path, doing in (("/api/dead/replay", "replay"), ("/api/dead/purge", "purge"), ("/api/dead/letters", "look")):
        with asked._alone("replay"), pytest.raises(Refused, match="a replay is under way") as caught:
            get(asked, path, name=NAME) if doing == "look" else post(asked, path, all=True)
        assert caught.value.status == 409
        with pytest.raises(ZeroDivisionError), asked._alone(doing):
            raise ZeroDivisionError
    with asked._alone("purge"):
        assert get(asked, "/api/dead")[0]["letters"] == 1, "counting holds none"


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (BrokerUnreachable("no broker"), 502, "no broker"),
        (WrongUse("add --all-channels if that is wanted, or --to"), 400, 'say "all_channels": true if that is wanted, or "to"'),
    ],
)
def test_what_brokers_cannot_do_is_told_in_words_of_http_and_what_was_done_before(
    error: Exception, status: int, words: str, asked: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = of_letters.Done()
    for count, more in ((0, ""), (2, "; 2 were done before" if status == 502 else "")):
        done.count = count
        with pytest.raises(Refused) as caught, of_letters._refusing(done):
            raise error
        assert (caught.value.status, str(caught.value)) == (status, words + more)

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(of_letters, "find", fails)
    with pytest.raises(Refused) as caught:
        get(asked, "/api/dead")
    assert caught.value.status == status


def test_letters_in_another_channel_are_not_missed_in_silence(asked: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(name=TOPIC, channel="other", count=3)
    monkeypatch.setattr(of_letters, "find", lambda *_, **__: [there])
    with pytest.raises(Refused, match=f"the letters of {TOPIC} are in its channel 'other'") as caught:
        post(asked, "/api/dead/replay")
    assert caught.value.status == 409
