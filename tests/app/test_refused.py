"""`run` and `check` on a broker that cannot carry a handler: both say the same sentence, and nothing is connected."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gevent
import pytest

from framework.app import App
from framework.cli.root import run_command
from framework.errors import WrongUse
from framework.handler import make_spec
from framework.settings import Settings
from framework.transports.contract import Capabilities, Limits, NodeInfo


class Plain:
    """A transport without fan-out and without a count of deliveries; whatever would connect is an AttributeError."""

    capabilities = Capabilities(touch=True, attempts=False, fan_out=False, max_requeue=0.0, max_defer=0.0)

    def accept(self, topic: str, channels: Collection[str]) -> None:
        if len(channels) > 1:
            raise WrongUse(f"topic {topic!r} has {len(channels)} channels, and this broker keeps one copy: leave one")

    def close(self) -> None:
        self.closed = True

    def producer(self) -> SimpleNamespace:
        return SimpleNamespace(close=lambda: None)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("framework.app", "framework.cli.check"):
        monkeypatch.setattr(f"{module}.open_transports", lambda urls: [Plain()])


def function(message):
    """What is decorated."""


class Cluster(Plain):
    """Two nodes, of which ``short`` cannot keep a message for two minutes; ``having`` is which of them have the topic."""

    capabilities = Capabilities(touch=True, attempts=True, fan_out=True, max_requeue=3600.0, max_defer=3600.0)

    def __init__(self, *having: str, hangs: bool = False) -> None:
        self.having = set(having)
        self.hangs = hangs

    def describe(self, topic: str, channel: str) -> list[NodeInfo]:
        if self.hangs:
            gevent.sleep(60)
        return [NodeInfo(name, "nsqd", Limits(60.0, most, 2500)) for name, most in (("short:1", 90.0), ("long:1", 900.0))]

    def discover(self, topic: str, channel: str) -> set[str]:
        return self.having

    def accept(self, topic: str, channels: Collection[str]) -> None: ...


def misfits(transport: Cluster) -> list[str]:
    return App([make_spec(function, "orders", "billing", {"timeout": 120})], Settings())._misfits(transport)


def test_what_is_known_without_a_connection_is_refused_before_any_broker_is_asked():
    """A broker that is down would hold up the sentence that names the mistake."""
    cluster = Cluster("short:1")
    app = App([make_spec(function, "orders", "billing", {"timeout": 120})], Settings())
    with pytest.raises(WrongUse, match="max_attempts"):
        App([make_spec(function, "orders", "billing", {"max_attempts": 3})], Settings())._refuse([cluster, Plain()])
    with pytest.raises(WrongUse, match="timeout=120 is longer than short:1 keeps"):
        app._refuse([cluster])


def test_a_node_that_has_the_topic_and_cannot_keep_the_timeout_is_refused():
    assert "timeout=120 is longer than short:1 keeps" in misfits(Cluster("short:1", "long:1"))[0]


@pytest.mark.parametrize("having", [["long:1"], []], ids=["another has the topic", "none has it yet"])
def test_a_node_that_has_nothing_to_do_with_the_handler_refuses_nothing(having: list[str]):
    assert misfits(Cluster(*having)) == []


def test_a_topic_that_none_has_yet_is_refused_when_none_could_carry_it(monkeypatch: pytest.MonkeyPatch):
    cluster = Cluster()
    nodes = cluster.describe("orders", "billing")[:1]
    monkeypatch.setattr(cluster, "describe", lambda topic, channel: nodes)
    assert len(misfits(cluster)) == 1


def test_a_node_that_does_not_answer_holds_up_the_start_for_half_a_second():
    began = time.monotonic()
    assert misfits(Cluster("short:1", hangs=True)) == []
    assert time.monotonic() - began < 5


def test_a_handler_is_judged_by_what_its_own_topic_and_channel_are_granted():
    cluster = Cluster()
    asked: list[tuple[str, str]] = []

    def describe(topic: str, channel: str) -> list[NodeInfo]:
        asked.append((topic, channel))
        can = replace(Cluster.capabilities, attempts=topic != "orders")
        return [NodeInfo("one:1", "streams 2", Limits(60.0, 900.0 if channel == "billing" else 90.0, 2500), can)]

    cluster.describe = describe
    options = {"timeout": 120, "max_attempts": 3}
    names = [("orders", "billing"), ("invoices", "billing"), ("invoices", "audit")]
    app = App([make_spec(function, topic, channel, options) for topic, channel in names], Settings())
    uncounted, short = app._misfits(cluster)
    assert "max_attempts=3 cannot be kept" in uncounted
    assert "timeout=120 is longer than one:1 keeps a message in flight, 90 s" in short
    assert sorted(asked) == sorted(names)


@pytest.mark.parametrize(
    ("made", "by", "wanted"),
    [(["orders"], [], 1), ([], [], 2), (["orders"], ["two:1"], 0), (["orders", "orders.billing.dead"], [], 0)],
    ids=["it has the topic alone", "it has neither", "another node makes it", "it has both"],
)
def test_where_no_topic_comes_to_be_by_itself_that_of_the_dead_letters_is_missed_as_well(
    made: list[str], by: list[str], wanted: int
):
    """Else ``check`` said that all was well, and ``run`` tried for ever. ``by``: the nodes that make topics."""
    cluster = Cluster()
    cluster.capabilities = replace(Cluster.capabilities, auto_create=False)

    def describe(topic: str, channel: str) -> list[NodeInfo]:
        said = [NodeInfo(node, "streams 2", Limits(60.0, 60.0, 2500)) for node in ("one:1", "two:1")]
        lacks = topic not in made
        return [replace(one, obstacles=(f"no topic {topic}",) if lacks and one.node not in by else ()) for one in said]

    cluster.describe = describe
    found = App([make_spec(function, "orders", "billing", {"timeout": 30})], Settings())._misfits(cluster)
    assert len(set(found)) == wanted


def test_of_hundreds_of_handlers_each_is_asked_for_and_some_at_a_time():
    cluster, running, most = Cluster(), 0, 0

    def describe(topic: str, channel: str) -> list[NodeInfo]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        gevent.sleep(0)
        running -= 1
        return [NodeInfo("one:1", "streams 2", Limits(60.0, 60.0, 2500))]

    cluster.describe = describe
    specs = [make_spec(function, f"orders{number}", "billing", {"timeout": 120}) for number in range(300)]
    assert len(App(specs, Settings())._misfits(cluster)) == 300
    assert 1 < most <= 32


def test_run_refuses_before_any_connection():
    handlers = [make_spec(function, "orders", channel) for channel in ("a", "b")]
    with pytest.raises(WrongUse, match="topic 'orders' has 2 channels, and this broker keeps one copy: leave one"):
        App(handlers, Settings(brokers=("plain://",))).run()


def test_what_was_opened_is_closed_even_where_nothing_could_run(monkeypatch: pytest.MonkeyPatch):
    plain = Plain()
    monkeypatch.setattr("framework.app.open_transports", lambda urls: [plain])
    with pytest.raises(WrongUse):
        App([make_spec(function, "orders", channel) for channel in ("a", "b")], Settings(brokers=("plain://",))).run()
    assert plain.closed


def test_check_says_everything_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    (tmp_path / "refused_shop.py").write_text(
        "from framework import handler\n"
        '@handler("orders", "a", max_attempts=3)\ndef a(m: bytes): ...\n'
        '@handler("orders", "b")\ndef b(m: bytes): ...\n'
    )
    monkeypatch.setattr("framework.cli.check._probe", lambda *_: [])
    monkeypatch.chdir(tmp_path)
    assert run_command(["check", "refused_shop", "--broker", "plain://"]) == 2
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("ok")]
    assert "FAIL  handler  refused_shop.a (refused_shop.py:2): topic 'orders' has 2 channels" in lines[0]
    assert "refused_shop.a (refused_shop.py:2): max_attempts=3 cannot be kept" in lines[1]
    assert lines[2].startswith("note  handler  refused_shop.b (refused_shop.py:4): this broker does not count deliveries")
