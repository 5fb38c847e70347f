"""What a question by HTTP asks of an nsqd, whatever else is there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd import http
from framework.nsqd.http import NsqdApi


@pytest.mark.parametrize(("query", "asked"), [
    ({}, ("", "", True, True)), ({"topic": "t", "channel": "c"}, ("t", "c", True, True)),
    ({"include_clients": "false"}, ("", "", False, True)), ({"include_mem": "0"}, ("", "", True, False)),
    ({"include_clients": "1", "include_mem": "true"}, ("", "", True, True)),
    ({"include_clients": "what", "include_mem": "what"}, ("", "", True, True)),
])  # fmt: skip
@pytest.mark.parametrize("form", ["json", "text", None])
def test_statistics_are_of_what_was_asked_for_and_in_full_otherwise(
    monkeypatch: pytest.MonkeyPatch, query: dict[str, str], asked: tuple[Any, ...], form: str | None
) -> None:
    given: list[Any] = []

    def stats(broker: str, clients: str, topic: str, channel: str, *, with_clients: bool, memory: bool) -> dict[str, str]:
        given.append((topic, channel, with_clients, memory))
        return {"of": f"{broker} {clients}"}

    monkeypatch.setattr(http, "stats", SimpleNamespace(stats=stats, text=lambda broker, body: f"text of {broker}: {body}"))
    api: Any = SimpleNamespace(_broker="this nsqd", _clients="all")
    answer = NsqdApi._stats(api, SimpleNamespace(get=(query | ({"format": form} if form else {})).get))  # type: ignore[arg-type]
    body = {"of": "this nsqd all"}
    assert (given, answer) == ([asked], body if form == "json" else f"text of this nsqd: {body}")
