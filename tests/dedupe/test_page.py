"""What docs/middleware.md shows of Dedupe works as it stands there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from framework import publish
from framework.handler import _registry
from framework.testing.servers import ROOT
from tests.house.pages import blocks

PAGE = ROOT / "docs" / "middleware.md"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the block that has the given word in it, as a module."""
    declared = dict(_registry.entries)

    def run(word: str) -> ModuleType:
        (block,) = (block for block in blocks(PAGE) if word in block.text)
        module = ModuleType("shown")
        monkeypatch.setitem(sys.modules, "shown", module)
        text = block.text.replace("/var/lib/shop", str(tmp_path))
        exec(compile(text, str(PAGE), "exec"), vars(module))
        return module

    yield run
    _registry.entries.clear()
    _registry.entries.update(declared)


def test_the_page_shows_a_handler_that_bills_an_order_once(page: Any, broker: Any, worker: Any, tmp_path: Path) -> None:
    shown = page("billed.sqlite")
    for number in (7, 8, 7):
        shown.order_again({"id": number})
    publish("orders", {"id": 9})
    ledger = worker.run(shown.bill)
    assert ledger.finished == 4
    keys = (tmp_path / "billed.sqlite").read_bytes()
    assert keys.count(b"orders/billing key 7"), "it was remembered in the file"


class Redis:
    """As much of Redis as the page uses."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def set(self, key: str, value: str, nx: bool = False, px: int = 0, ex: int = 0) -> bool | None:
        assert px > 0 or ex > 0
        if nx and key in self.kept:
            return None
        self.kept[key] = value.encode()
        return True

    def get(self, key: str) -> bytes | None:
        return self.kept.get(key)

    def delete(self, key: str) -> None:
        del self.kept[key]


def test_the_page_shows_a_store_that_works(page: Any, broker: Any, worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("redis")
    library.Redis = Redis  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "redis", library)
    shown = page("InRedis")
    for _ in range(2):
        publish("invoices", {"id": 7}, headers={"idempotency-key": "7"})
    assert worker.run(shown.mail).finished == 2
    keys = shown.InRedis(Redis())
    assert keys.claim(["a", "b"], "one", 60) == ["new", "new"]
    assert keys.claim(["a"], "two", 60) == ["claimed"]
    keys.done(["a"], "one")
    keys.release(["b"], "one")
    assert keys.claim(["a", "b"], "two", 60) == ["done", "new"]
