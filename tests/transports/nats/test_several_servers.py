"""What is raised when no server of a cluster takes us, and what becomes of a session that is made for nobody."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import gevent
import pytest

from framework.errors import AccessDenied, BadSetting, BrokerUnreachable, FrameworkError
from framework.transports import nats_route
from framework.transports.nats import sessions
from framework.transports.nats.sessions import Loan, Servers
from framework.transports.nats_route import urls
from framework.transports.nats_route.look import look
from framework.transports.nats_route.mesh import Mesh

ANSWERS = {
    "away:1": BrokerUnreachable("away:1 is away"),
    "away:2": BrokerUnreachable("away:2 is away"),
    "shut:1": AccessDenied("who are you"),
    "shut:2": AccessDenied("and who are you"),
}


def dialled(servers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def dial(server: str, *_: Any) -> Any:
        if server in ANSWERS:
            raise ANSWERS[server]
        yield SimpleNamespace(server=server, info=SimpleNamespace(connect_urls=()))

    monkeypatch.setattr(sessions, "dial", dial)
    cluster: Any = SimpleNamespace(node=servers[0], servers=servers, login=None)
    monkeypatch.setattr(sessions, "replace", lambda way, **_: way)
    with Servers(cluster, SimpleNamespace()).dial():  # type: ignore[arg-type]
        pass


def looked(servers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def look_at(server: str, *_: Any) -> None:
        if server in ANSWERS:
            raise ANSWERS[server]

    monkeypatch.setattr(nats_route.look, "_look_at", look_at)
    look(SimpleNamespace(servers=servers), None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("ask", [dialled, looked])
@pytest.mark.parametrize(
    ("servers", "raised", "words"),
    [
        (("away:1",), BrokerUnreachable, ["away:1 is away"]),
        (("shut:1",), AccessDenied, ["who are you"]),
        (("shut:1", "shut:2"), AccessDenied, ["who are you"]),
        (("away:1", "away:2"), BrokerUnreachable, ["away:1 is away", "away:2 is away"]),
        (("away:1", "shut:1"), BrokerUnreachable, ["away:1 is away", "who are you"]),
        (("shut:1", "away:1"), BrokerUnreachable, ["away:1 is away", "who are you"]),
        (("away:1", "shut:1", "there:1"), None, []),
    ],
)
def test_one_refusal_or_refusals_alone_are_raised_as_they_are_and_else_all_is_said(
    ask: Any, servers: tuple[str, ...], raised: type[FrameworkError] | None, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is away may take us later: to be refused by another is no reason to end."""
    if raised is None:
        ask(servers, monkeypatch)
        return
    with pytest.raises(FrameworkError) as failed:
        ask(servers, monkeypatch)
    assert type(failed.value) is raised
    assert all(one in str(failed.value) for one in words)


@pytest.mark.parametrize("over", [True, False])
def test_a_session_is_given_back_whichever_is_not_used_any_more(over: bool) -> None:
    """Whoever leaves while another is dialled leaves none behind."""
    used: list[str] = []

    class Sessions:
        made = 0

        def take(self, _node: str) -> Any:
            self.made += 1
            used.append(f"session {self.made}")
            if self.made == 2 and over:
                loan.give_back()
            return SimpleNamespace(server=used[-1])

        def give_back(self, session: Any) -> None:
            used.remove(session.server)

    loan = Loan(Sessions(), "a:4222")  # type: ignore[arg-type]
    if over:
        with pytest.raises(BrokerUnreachable, match="is not used here any more"):
            loan.renew()
        assert used == []
    else:
        assert loan.renew().server == "session 2"
        assert used == ["session 2"]


@pytest.mark.parametrize("login", ["user", "user:", ":word"])
def test_a_route_s_user_and_password_come_together(login: str) -> None:
    with pytest.raises(BadSetting, match="user:password of the cluster's authorization") as refused:
        urls.read([f"nats-route://{login}@a:6222"])
    assert "word@" not in str(refused.value)


def test_a_mesh_that_is_closed_dials_nobody_any_more() -> None:
    keepers = {"a:6222": gevent.spawn(gevent.sleep, 60), "b:6222": gevent.spawn(gevent.sleep, 60)}
    mesh: Any = MagicMock(_keepers=keepers, _door=None, routes={})
    Mesh.close(mesh)
    gevent.sleep(0.01)
    assert all(one.dead for one in keepers.values())
