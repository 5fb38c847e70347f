"""What the tests of delays share."""

from __future__ import annotations

import pytest

from tests.middleware.waiting import Waiting


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(monkeypatch)
