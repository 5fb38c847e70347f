"""What the brokers are called in the data of others, and where a terminal is that shows colours."""

from __future__ import annotations

import sys

import pytest

from framework.observe.logging import _on_terminal, _words_of
from framework.observe.system import only_node, server_of, system_of


@pytest.mark.parametrize(
    ("brokers", "system", "node"),
    [
        ([], "nsq", ""),
        (["nsq://a:4150"], "nsq", "a:4150"),
        (["nsq://user:word@a:4150"], "nsq", "a:4150"),
        (["nsq+lookupd://a:4161"], "nsq", ""),
        (["nats://a:4222,b:4222"], "nats", ""),
        (["nats-route://a:6222"], "nats", "a:6222"),
        (["nsq://a:4150", "nsq+lookupd://b:4161"], "nsq", ""),
        (["nsq://a:4150", "nsq://b:4150"], "nsq", ""),
        (["nsq://a:4150", "beanstalkd://b:11300"], "", ""),
    ],
)
def test_a_name_is_said_where_there_is_one(brokers: list[str], system: str, node: str) -> None:
    assert (system_of(brokers), only_node(brokers)) == (system, node)


@pytest.mark.parametrize(
    ("node", "server"), [("a:4150", ("a", 4150)), ("[::1]:4150", ("::1", 4150)), ("a", ("a", None)), ("a:x", ("a:x", None))]
)
def test_a_node_is_a_host_and_perhaps_a_port(node: str, server: tuple[str, int | None]) -> None:
    assert server_of(node) == server


@pytest.mark.parametrize(
    ("terminal", "environment", "colours"),
    [
        (True, {}, True),
        (True, {"TERM": "xterm"}, True),
        (False, {"TERM": "xterm"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {"NO_COLOR": "1"}, False),
    ],
)
def test_colours_are_for_a_terminal_that_shows_them(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, environment: dict[str, str], colours: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _on_terminal() is colours


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (None, ""),
        ({"handler": "orders/billing"}, "[orders/billing] "),
        ({"handler": "orders/billing", "id": "a1", "attempt": 2}, "[orders/billing a1 #2] "),
        ({"handler": "orders/billing", "id": "a1", "attempt": 1, "messages": 1}, "[orders/billing a1 #1] "),
        ({"handler": "orders/billing", "id": "a1", "attempt": 1, "messages": 3}, "[orders/billing a1 #1 and 2 more] "),
    ],
)
def test_a_line_says_which_messages_its_call_is_for(call: dict[str, object] | None, words: str) -> None:
    assert _words_of(call) == words
