"""Headers go where their message goes: to a handler in a process, into its dead letter, and back by a replay."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework.deadletters import Replay, Selection, Sweep, find
from framework.engine.supervisor import Supervisor
from framework.errors import Reject
from framework.handler import make_spec
from framework.message import Message
from framework.publisher import Publisher
from framework.transports import memory, open_transports
from framework.transports.enveloped import sealed

_numbers = itertools.count(1)
MODULES = Path(__file__).parent / "modules"


@pytest.fixture
def url() -> Any:
    name = f"headers-{next(_numbers)}"
    yield f"memory://{name}"
    memory.forget(name)


def handled(url: str, function: Any, **options: Any) -> None:
    """Run ``function`` until it has ended one message."""
    publisher = Publisher(url)
    spec = make_spec(function, "orders", "billing", options)
    supervisor = Supervisor([spec], open_transports([url]), publish=publisher.publish)
    running, ledger = gevent.spawn(supervisor.run), supervisor.ledgers[spec.name]
    with gevent.Timeout(20):
        while not ledger.settled:
            gevent.sleep(0.01)
        supervisor.stop()
        running.get()


def test_a_handler_in_a_process_gets_them(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(MODULES))
    monkeypatch.setenv("JOURNAL", str(tmp_path / "journal"))
    import process_jobs

    Publisher(url).publish("orders", b"x", headers={"traceparent": "00-1"})
    handled(url, process_jobs.say_headers, slots="process", concurrency=1)
    assert (tmp_path / "journal").read_text() == "{'traceparent': '00-1'}\n"


def test_a_dead_letter_keeps_them_and_a_replay_gives_them_back(url: str) -> None:
    def reject(message: Message) -> None:
        raise Reject("no use")

    seen: list[dict[str, str]] = []
    Publisher(url).publish("orders", b"x", headers={"traceparent": "00-1"})
    handled(url, reject)
    [topic] = find(open_transports([url]))
    with Sweep(topic) as sweep:
        for _ in Replay(sweep).run(sweep.chosen(Selection())):
            pass
    handled(url, lambda message: seen.append(dict(message.headers)))
    assert seen == [{"traceparent": "00-1"}]


@pytest.mark.real
def test_a_message_that_is_headers_alone_dies_and_comes_back(nsqd: Any) -> None:
    """We publish none, others do: to nsqd an envelope is not empty."""

    def reject(message: Message) -> None:
        raise Reject("no use")

    url = f"nsq://{nsqd.address}?headers=true&http_port={nsqd.http_port}"
    seen: list[tuple[bytes, dict[str, str]]] = []
    nsqd.http("/pub?topic=orders", sealed({"traceparent": "00-1"}, b""))
    handled(url, reject)
    [topic] = find(open_transports([url]))
    with Sweep(topic) as sweep:
        replay = Replay(sweep)
        for _ in replay.run(sweep.chosen(Selection())):
            pass
    assert (replay.replayed, replay.failed) == (1, 0), replay.why_failed
    handled(url, lambda message: seen.append((message.body, dict(message.headers))))
    assert seen == [(b"", {"traceparent": "00-1"})]
