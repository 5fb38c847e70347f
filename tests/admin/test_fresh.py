"""What takes long to make is made once for all who ask meanwhile, as seldom as it is dear, and keeps nobody from the others."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from framework.admin import fresh
from framework.admin.access import Access
from framework.admin.fresh import Breathe, Fresh
from framework.admin.latest import FRESH
from framework.admin.pages import Pages
from framework.admin.requests import Request
from tests.admin.test_snapshot import row, snapshot


class Slow:
    """A source whose snapshot takes until it is let go on, in slices."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = False

    def snapshot(self, breathe: Breathe) -> Any:
        self.begun += 1
        while not self.may_end:
            breathe()
        return snapshot(row())

    def health(self) -> Any:
        return [{"stuck": ["it is stuck"], "unready": []}]

    def act(self, command: object) -> None: ...


@pytest.fixture(autouse=True)
def _slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "SLICE", 0.0)


@pytest.mark.parametrize("scrapers", [1, 10])
def test_health_is_answered_while_the_figures_of_many_are_made_for_ten_at_once(scrapers: int) -> None:
    source = Slow()
    pages = Pages(source, list, Access(local=True))
    scraping = [gevent.spawn(pages.answer, Request("GET", "/metrics")) for _ in range(scrapers)]
    with gevent.Timeout(20):
        while not source.begun:
            gevent.sleep(0)
        alive, ready = (pages.answer(Request("GET", path)) for path in ("/livez", "/readyz"))
        assert not any(one.ready() for one in scraping)
        source.may_end = True
        gevent.joinall(scraping)
    assert (alive.status, alive.body, ready.status) == (503, b"it is stuck\n", 200)
    assert source.begun == 1
    assert {one.value.status for one in scraping} == {200}


def test_who_scales_waits_for_no_snapshot_once_there_was_one() -> None:
    source = Slow()
    source.may_end = True
    pages = Pages(source, list, Access(local=True))
    with gevent.Timeout(20):
        assert pages.answer(Request("GET", "/api/snapshot")).status == 200
        source.may_end = False
        gevent.sleep(1.5 * FRESH)
        looking = gevent.spawn(pages.answer, Request("GET", "/api/snapshot"))
        while source.begun < 2:
            gevent.sleep(0)
        answer = pages.answer(Request("GET", "/scale", {"handler": "orders/bill"}))
        assert (answer.status, answer.body, looking.ready()) == (200, b'{"value":0}\n', False)
        source.may_end = True
        looking.join()


def test_what_is_forgotten_while_it_is_made_is_made_anew() -> None:
    source = Slow()
    kept = Fresh(source.snapshot, 60)
    first = gevent.spawn(kept)
    gevent.sleep(0.01)
    kept.forget()
    source.may_end = True
    with gevent.Timeout(20):
        first.join()
        kept()
        kept()
    assert source.begun == 2


def test_what_fails_is_tried_by_the_next_who_asks() -> None:
    tries: list[int] = []

    def make(_: Breathe) -> int:
        tries.append(1)
        return 1 // (len(tries) - 1)

    kept = Fresh(make, 60)
    with pytest.raises(ZeroDivisionError):
        kept()
    assert kept() == kept() == 1
    assert len(tries) == 2
