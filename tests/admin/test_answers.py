"""What each path answers whom, asked without a network: which rows, which status, what is demanded before anything is changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from framework.admin import here
from framework.admin.access import Access
from framework.admin.assets import PATHS
from framework.admin.here import _stalled
from framework.admin.pages import Pages
from framework.admin.requests import Answer, Request
from tests.admin.test_snapshot import row, snapshot

NAMES = ("orders/bill", "orders/mail")


class Source:
    """A worker of two handlers."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []

    def health(self) -> Any:
        return [{"stuck": [], "unready": []}]

    def snapshot(self, _: object) -> Any:
        pause = {"by": "operator", "processes": 1} if self.asked else None
        return snapshot(*(row(name, pause=pause) for name in NAMES))

    def act(self, command: Mapping[str, Any]) -> None:
        self.asked.append(command)


def ask(pages: Pages, path: str, **more: Any) -> tuple[int, Any]:
    answer: Answer = pages.answer(Request("POST" if "body" in more else "GET", path, **more))
    assert isinstance(answer.body, bytes)
    return answer.status, json.loads(answer.body) if answer.kind.startswith("application/json") else answer.body


def pages_of(source: Source, **access: Any) -> Pages:
    return Pages(source, list, Access(local=True, **access))


@pytest.mark.parametrize(("query", "names"), [({}, NAMES), *(({"handler": name}, (name,)) for name in NAMES)])
def test_rows_are_of_the_handler_that_is_asked_for_or_of_all(query: dict[str, str], names: tuple[str, ...]) -> None:
    status, rows = ask(pages_of(Source()), "/api/handlers", query=query)
    assert (status, tuple(one["handler"] for one in rows)) == (200, names)


@pytest.mark.parametrize("handler", [{}, {"handler": None}, {"handler": NAMES[1]}])
@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", " application/json "])
def test_an_action_is_for_one_handler_or_for_all(handler: dict[str, str | None], kind: str) -> None:
    source = Source()
    body = json.dumps({"action": "pause", **handler}).encode()
    assert ask(pages_of(source), "/api/actions", body=body, headers={"content-type": kind})[0] == 200
    assert source.asked == [{"action": "pause", "handler": handler.get("handler"), "value": None}]


@pytest.mark.parametrize(("kind", "status"), [("", 415), ("text/plain", 415), ("text/plain; application/json", 415)])
def test_what_a_page_of_another_site_can_send_changes_nothing(kind: str, status: int) -> None:
    source = Source()
    body = b'{"action": "pause"}'
    assert ask(pages_of(source), "/api/actions", body=body, headers={"content-type": kind})[0] == status
    assert source.asked == []


@pytest.mark.parametrize("path", PATHS)
def test_the_files_of_the_page_are_there_for_everybody(path: str) -> None:
    status, body = ask(pages_of(Source(), token="secret"), path)
    assert (status, bool(body)) == (200, True)


def test_a_stranger_is_told_of_once_and_who_asks_for_what_is_not_there_never(caplog: pytest.LogCaptureFixture) -> None:
    pages = pages_of(Source(), token="secret")
    known = {"authorization": "Bearer secret"}
    said = []
    for remote, path, headers, status in (
        ("10.0.0.1", "/nowhere", known, 404), ("10.0.0.1", "/api", {}, 401), ("10.0.0.1", "/api", {}, 401),
        ("10.0.0.2", "/metrics", {"authorization": "Bearer guess"}, 401), ("10.0.0.1", "/api", known, 200),
    ):  # fmt: skip
        caplog.clear()
        assert ask(pages, path, remote=remote, headers=headers)[0] == status
        said.append(len(caplog.records))
    assert said == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("calls", "came", "ended", "stalled"),
    [([], [], 5.0, 0.0), ([7.0, 3.0], [], 9.0, 7.0), ([7.0], [8.0], 2.0, 2.0), ([], [6.0, 4.0], 9.0, 6.0), ([], [6.0], 0.5, 0.5)],
)
def test_a_handler_stands_still_since_a_call_ended_or_the_oldest_that_it_has_began(
    calls: list[float], came: list[float], ended: float, stalled: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them in seconds ago."""
    now = 1000.0
    monkeypatch.setattr(here, "clock", lambda: now)
    consumer: Any = SimpleNamespace(
        running=SimpleNamespace(calls=lambda: [SimpleNamespace(started=now - one) for one in calls]),
        accounts=[SimpleNamespace(in_flight={number: now - one for number, one in enumerate(came)})],
        times=SimpleNamespace(ended_at=now - ended),
    )
    assert _stalled(consumer) == stalled
