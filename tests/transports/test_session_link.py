"""Whether a session can be published on: what has come is read first, and on the hub where somebody waits for it."""

from __future__ import annotations

import time
from typing import Any

import gevent
import pytest

from framework.transports import session_link
from framework.transports.session_link import DOUBT, SessionLink


class Session:
    """One on which something has come that is not read yet."""

    leaving, error = False, None

    def __init__(self, silent: float) -> None:
        self.heard_at = time.monotonic() - silent
        self.read_on_hub: list[bool] = []

    def poll(self) -> None:
        self.read_on_hub.append(gevent.getcurrent() is gevent.get_hub())
        self.heard_at = time.monotonic()


class Link(SessionLink[Any, Any]):
    def __init__(self, session: Session, *, owes: bool) -> None:
        super().__init__("n:1", session)
        self._is_owed = owes

    @property
    def _owes(self) -> bool:
        return self._is_owed


@pytest.mark.parametrize(("silent", "owes", "read_on_hub"), [
    (0.0, False, []), (0.5, False, [False]), (DOUBT + 9, False, [False]), (DOUBT / 2, True, []), (DOUBT + 9, True, [True]),
])  # fmt: skip
def test_what_has_come_is_read_where_nobody_waits_and_else_on_the_hub(
    monkeypatch: pytest.MonkeyPatch, silent: float, owes: bool, read_on_hub: list[bool]
) -> None:
    monkeypatch.setattr(session_link, "_IDLE", 0.1)
    session = Session(silent)
    assert Link(session, owes=owes).usable()
    assert session.read_on_hub == read_on_hub


def test_who_was_doubted_while_the_hub_stood_still_is_not_once_what_had_come_is_read() -> None:
    session = Session(DOUBT + 9)
    link = Link(session, owes=True)
    link.look(time.monotonic() - DOUBT - 9)
    gevent.get_hub().loop.run_callback(time.sleep, 0.005)
    assert link.usable()
