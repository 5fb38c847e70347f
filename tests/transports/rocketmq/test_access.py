"""A real RocketMQ that asks for access keys: what is signed is served, and what is not is refused in its broker's words."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import gevent
import pytest

from framework.errors import BrokerRefuses
from framework.testing.conformance.receiver import Held
from framework.testing.rocketmq import PROMPT, RocketMQ
from framework.transports import open_transports
from framework.transports.rocketmq import connection
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.wire.codes import Request
from tests.cli.test_shut_out import APP, ends_at_once
from tests.transports.rocketmq.kit import started, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]
_AUTH = "org.apache.rocketmq.auth"
_SETTINGS = PROMPT | {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": '{"username":"AK","password":"secret12345"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"AK","secretKey":"secret12345"}',
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    yield from started(tmp_path_factory.mktemp("guarded"), _SETTINGS)


@pytest.mark.parametrize("options", ["", "&mode=pull"], ids=["by POP", "by PULL"])
def test_who_signs_publishes_and_handles(guarded: RocketMQ, options: str) -> None:
    topic = f"orders{len(options)}"
    (transport,) = open_transports([f"rocketmq://AK:secret12345@{guarded.address}?poll=200ms{options}"])
    transport.ensure(topic, ["billing"])
    producer = transport.producer()
    producer.publish(topic, [b"signed", b"again"])
    held = Held(lambda receiver: transport.connect(guarded.name, topic, "billing", receiver))
    held.grant(5)
    until(lambda: len(held.taken) == 2)
    held.connection.finish(held.taken[0])
    held.connection.requeue(held.taken[1], 0.0)
    until(lambda: len(held.taken) == 3)
    held.connection.finish(held.taken[2])
    until(held.balanced)
    assert (held.tally.finished, held.tally.requeued) == (2, 1)
    held.connection.close()
    until(lambda: held.receiver.closings)
    held.check()
    producer.close()
    transport.close()


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_worker_whose_clock_is_hours_off_waits_for_messages_and_gets_them(
    guarded: RocketMQ, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    monkeypatch.setattr(connection, "time", lambda: time.time() + hours * 3600)
    topic = f"clocks{hours}"
    (transport,) = open_transports([f"rocketmq://AK:secret12345@{guarded.address}?poll=500ms"])
    transport.ensure(topic, ["billing"])
    held = Held(lambda receiver: transport.connect(guarded.name, topic, "billing", receiver))
    asked: list[int] = []
    put = held.connection._session.put  # type: ignore[attr-defined]
    monkeypatch.setattr(held.connection._session, "put", lambda *what, **how: asked.append(what[1]) or put(*what, **how))  # type: ignore[attr-defined]
    held.grant(5)
    gevent.sleep(2.0)
    assert 3 <= asked.count(Request.POP_MESSAGE) <= 8, "each waits at its broker"
    producer = transport.producer()
    producer.publish(topic, [b"x"])
    until(lambda: held.taken, 3.0)
    held.connection.finish(held.taken[0])
    until(held.balanced)
    held.connection.close()
    until(lambda: held.receiver.closings)
    assert held.tally.lease_lost == 0
    producer.close()
    transport.close()


@pytest.mark.parametrize(("login", "words"), [("", "username cannot be null"), ("zz:secret12345@", "User:zz is not found"),
                                              ("AK:wrong@", "check signature failed")])  # fmt: skip
def test_who_does_not_sign_or_wrongly_is_refused_in_its_words(guarded: RocketMQ, login: str, words: str) -> None:
    (transport,) = open_transports([f"rocketmq://{login}{guarded.address}"])
    with pytest.raises(BrokerRefuses, match=words):
        transport.probe()
    transport.close()


@pytest.mark.parametrize("login", ["", "AK:wrong@"], ids=["without keys", "with a wrong secret"])
def test_a_worker_that_is_refused_ends_at_once(guarded: RocketMQ, tmp_path: Path, login: str) -> None:
    """It asked for the topics of its handlers again and again, for as long as --connect-deadline says."""
    (tmp_path / "shop.py").write_text(APP)
    last = ends_at_once(["run", "shop"], f"rocketmq://{login}{guarded.address}", tmp_path).stderr.splitlines()[-1]
    assert last.startswith("workers: handler orders/say: no broker accepts it (")
    assert f"{guarded.name}: NO_PERMISSION" in last


def allow(session: Session, user: str, *actions: str) -> None:
    """A user who may do that with all topics and groups."""
    who = {"username": user, "password": "secret12345", "userType": "Normal"}
    session.ask(Request.AUTH_CREATE_USER, {"username": user}, json.dumps(who).encode())
    entries = [{"resource": f"{kind}:*", "actions": actions, "decision": "Allow"} for kind in ("Topic", "Group")]
    rights = {"subject": f"User:{user}", "policies": [{"policyType": "Custom", "entries": entries}]}
    session.ask(Request.AUTH_CREATE_ACL, {"subject": f"User:{user}"}, json.dumps(rights).encode())


def test_a_worker_by_pull_that_may_not_read_ends_at_once(guarded: RocketMQ, tmp_path: Path) -> None:
    """It was ready, read nothing, and never said why."""
    (transport,) = open_transports([f"rocketmq://AK:secret12345@{guarded.address}"])
    for topic in ("orders", "orders.say.dead"):
        transport.ensure(topic, [])
    with transport._sessions.use(guarded.broker.address) as session:  # type: ignore[attr-defined]
        allow(session, "publisher", "Pub")
    transport.close()
    (tmp_path / "shop.py").write_text(APP)
    url = f"rocketmq://publisher:secret12345@{guarded.address}?mode=pull"
    last = ends_at_once(["run", "shop"], url, tmp_path).stderr.splitlines()[-1]
    assert last.startswith("workers: handler orders/say: no broker accepts it (")
    assert "NO_PERMISSION User:publisher has no permission to access" in last


def test_a_worker_that_may_make_no_topic_ends_at_once_and_says_which_is_missing(guarded: RocketMQ, tmp_path: Path) -> None:
    """It tried for as long as --connect-deadline says, and then said to start the broker."""
    (transport,) = open_transports([f"rocketmq://AK:secret12345@{guarded.address}"])
    transport.ensure("sales", [])
    with transport._sessions.use(guarded.broker.address) as session:  # type: ignore[attr-defined]
        allow(session, "worker", "Pub", "Sub")
    (tmp_path / "shop.py").write_text(APP.replace("orders", "sales"))
    last = ends_at_once(["run", "shop"], f"rocketmq://worker:secret12345@{guarded.address}", tmp_path).stderr.splitlines()[-1]
    assert "has no topic for sales.say.dead, and lets this user make none (NO_PERMISSION User:worker" in last
    assert "make it with mqadmin updateTopic -t sales%2Esay%2Edead" in last
    transport.close()
