"""The thread that serves the admin pages has ended when the endpoint says that it is closed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from framework.admin import server
from framework.admin.address import listen
from framework.admin.requests import Answer


def test_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, stopped = server._Server.stop, []

    def slowly(self: Any, timeout: float | None = None) -> None:
        time.sleep(0.2)  # in its own thread
        stop(self, timeout)
        stopped.append(True)

    monkeypatch.setattr(server._Server, "stop", slowly)
    server.Server(listen("127.0.0.1:0"), lambda request: Answer(200, "text/plain", b"ok\n")).close()
    assert stopped == [True]
