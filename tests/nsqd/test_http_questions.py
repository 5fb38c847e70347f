"""What a question by HTTP asks of an nsqd, whatever else is there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd import http, stats
from framework.nsqd.http import NsqdApi
from framework.nsqd.options import parse
from framework.nsqd.web import Api


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


def test_intervals_are_told_in_nanoseconds() -> None:
    options = parse(["--max-heartbeat-interval=90s", "--max-output-buffer-timeout=20s"])
    said = stats.info(SimpleNamespace(options=options, start_time=5.9), {"tcp_port": 4150})  # type: ignore[arg-type]
    assert (said["max_heartbeat_interval"], said["max_output_buffer_timeout"]) == (90_000_000_000, 20_000_000_000)
    assert (said["start_time"], said["tcp_port"]) == (5, 4150)


@pytest.mark.parametrize(
    ("path", "is_there"), [("/pub", True), ("/config/any", True), ("/config/", False), ("/none", False), ("/", False)]
)
def test_a_path_that_is_not_there_is_answered_as_go_answers_it(path: str, is_there: bool) -> None:
    api: Any = SimpleNamespace(_routes={"/pub": {"POST": None}, "/config/": {"GET": None}}, _redirect=lambda _: "as Go does")
    request: Any = SimpleNamespace(path=path, name=path.rpartition("/")[2], method="OPTIONS")
    answer = Api.respond(api, request)
    assert (answer.code == 200) if is_there else (answer == "as Go does")
