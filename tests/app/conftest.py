"""Each test of this room starts with no handlers declared, and leaves those of other tests alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framework import handler as _  # noqa: F401
from framework import publisher
from framework.handler import _registry


@pytest.fixture(autouse=True)
def _no_handlers_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registry, "entries", {})


@pytest.fixture(autouse=True)
def _no_publisher_left() -> Iterator[None]:
    yield
    publisher.use(None)
