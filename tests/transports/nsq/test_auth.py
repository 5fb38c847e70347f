"""AUTH of a real nsqd that asks an auth server of ours: who may do what, what others are told, and no word of the secret."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import gevent
import pytest

from framework.errors import AccessDenied, BadSetting, BrokerUnreachable, PublishError
from framework.testing.servers import free_port
from framework.transports import open_transports
from framework.transports.nsq.urls import Options

pytestmark = pytest.mark.real

SECRET = "tr0ub4dor&3"


def permission(topic: str, *permissions: str, channels: tuple[str, ...] = (".*",)) -> dict:
    return {"permissions": list(permissions), "topic": topic, "channels": list(channels)}


class AuthServer:
    """Answers every request by ``answer`` (bytes as they are) with ``status``, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.status = 200
        self.answer: object = {
            "ttl": 5,
            "identity": "authServer",
            "identity_url": "http://w.auth.com/api/auth",
            "authorizations": [permission("orders", "subscribe", "publish"), permission("nsq_test", "subscribe", "publish")],
        }
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append({k: v[0] for k, v in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()})
                body = server.answer if isinstance(server.answer, bytes) else json.dumps(server.answer).encode()
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def permit(self, *permissions: dict, ttl: int = 5) -> None:
        self.answer = {**self.answer, "ttl": ttl, "authorizations": list(permissions)}


@pytest.fixture
def auth_server():
    server = AuthServer()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def nsqd(start_nsqd, auth_server):
    return start_nsqd(f"--auth-http-address={auth_server.address}")


@pytest.fixture
def secret(tmp_path):
    """The option that names a file with the secret, as an editor leaves it."""
    (tmp_path / "secret").write_text(SECRET + "\n")
    return {"auth_secret_file": str(tmp_path / "secret")}


def denied(connecting, *arguments, **options) -> AccessDenied:
    with pytest.raises(AccessDenied) as caught:
        connecting(*arguments, **options)
    return caught.value


# --- who may ---------------------------------------------------------------------------------------------------


def test_a_secret_from_a_file_lets_publish_and_consume(nsqd, auth_server, secret, kit):
    kit.producer(nsqd.address, **secret).publish("orders", [b"x"])
    receiver = kit.Recorder(kit.finish_all)
    kit.subscribe(nsqd.address, receiver, **secret).grant(1)
    kit.until(lambda: receiver.tally.finished == 1)
    assert auth_server.asked[0] == {"remote_ip": "127.0.0.1", "tls": "false", "secret": SECRET, "common_name": ""}
    client = nsqd.channel_stats("orders", "billing")["clients"][0]
    assert (client["authed"], client["auth_identity"]) == (True, "authServer")


def test_a_secret_from_the_environment_does_as_well(nsqd, monkeypatch, kit):
    monkeypatch.setenv("NSQ_AUTH_SECRET", SECRET)
    kit.producer(nsqd.address).publish("orders", [b"x"])
    assert kit.stored(nsqd) == 1


def test_a_secret_that_was_replaced_is_used_at_the_next_connection(nsqd, auth_server, secret, kit):
    kit.subscribe(nsqd.address, kit.Recorder(), **secret)
    Path(secret["auth_secret_file"]).write_text("n3w")
    kit.subscribe(nsqd.address, kit.Recorder(), **secret)
    assert [one["secret"] for one in auth_server.asked] == [SECRET, "n3w"]


def test_an_nsqd_that_asks_for_none_is_told_none(start_nsqd, secret, kit):
    open_nsqd = start_nsqd()
    kit.producer(open_nsqd.address, **secret).publish("orders", [b"x"])
    assert kit.stored(open_nsqd) == 1


# --- who may not -----------------------------------------------------------------------------------------------


def test_without_a_secret_the_error_says_where_to_put_one(nsqd, kit):
    error = denied(kit.subscribe, nsqd.address, kit.Recorder())
    assert (error.code, error.fatal) == ("E_AUTH_FIRST", True)
    assert "auth_secret_file= in the broker URL" in str(error)
    with pytest.raises(PublishError, match="NSQ_AUTH_SECRET") as caught:
        kit.producer(nsqd.address, deadline=2).publish("orders", [b"x"])
    assert caught.value.stored is False


@pytest.mark.parametrize(
    "reply",
    [
        (500, b"oops"),
        (200, b"<html>"),
        (200, {"ttl": 0, "authorizations": []}),
        (200, {"ttl": 5, "authorizations": [permission("orders", "everything")]}),
        (200, {"ttl": 5, "authorizations": [permission("(", "publish")]}),
    ],
)
def test_an_auth_server_that_answers_nonsense_denies_everything(nsqd, auth_server, secret, kit, reply):
    auth_server.status, auth_server.answer = reply
    error = denied(kit.subscribe, nsqd.address, kit.Recorder(), **secret)
    assert (error.code, error.words) == ("E_AUTH_FAILED", "AUTH failed")
    assert "auth server" in str(error)


def test_an_auth_server_that_is_not_there_denies_everything(start_nsqd, secret, kit):
    nsqd = start_nsqd(f"--auth-http-address=127.0.0.1:{free_port()}")
    assert denied(kit.subscribe, nsqd.address, kit.Recorder(), **secret).code == "E_AUTH_FAILED"


def test_a_secret_that_permits_nothing_is_refused_at_once(nsqd, auth_server, secret, kit):
    auth_server.permit()
    error = denied(kit.subscribe, nsqd.address, kit.Recorder(), **secret)
    assert (error.code, error.words) == ("E_UNAUTHORIZED", "AUTH no authorizations found")


def test_what_is_not_permitted_is_named(nsqd, auth_server, secret, kit):
    auth_server.permit(permission("orders", "publish"))
    error = denied(kit.subscribe, nsqd.address, kit.Recorder(), **secret)
    assert (error.code, error.words) == ("E_UNAUTHORIZED", 'AUTH failed for SUB on "orders" "billing"')
    auth_server.permit(permission("orders", "subscribe"))
    with pytest.raises(PublishError, match='E_UNAUTHORIZED AUTH failed for PUB on "orders" ""') as caught:
        kit.producer(nsqd.address, **secret).publish("orders", [b"x"])
    assert caught.value.stored is False
    kit.subscribe(nsqd.address, kit.Recorder(), **secret)


@pytest.mark.parametrize("how", [([b"x"], 0, "PUB"), ([b"x", b"y"], 0, "MPUB"), ([b"x"], 1, "DPUB")])
def test_each_way_to_publish_is_refused_and_nothing_is_stored(nsqd, auth_server, secret, kit, how):
    bodies, delay, command = how
    auth_server.permit(permission("other", "publish"))
    with pytest.raises(PublishError, match=f"AUTH failed for {command} on") as caught:
        kit.producer(nsqd.address, **secret).publish("orders", bodies, delay=delay)
    assert caught.value.stored is False
    assert isinstance(caught.value.__cause__, AccessDenied)
    assert kit.stored(nsqd) == 0


# --- what changes ----------------------------------------------------------------------------------------------


def test_a_permission_that_is_withdrawn_ends_publishing_at_the_next_question_and_one_given_back_resumes_it(
    nsqd, auth_server, secret, kit
):
    both = permission("orders", "subscribe", "publish")
    auth_server.permit(both, ttl=1)
    producer = kit.producer(nsqd.address, **secret)
    producer.publish("orders", [b"x"])
    auth_server.permit(permission("orders", "subscribe"), ttl=1)

    def refused() -> str:
        try:
            producer.publish("orders", [b"x"])
        except PublishError as error:
            return str(error)
        return ""

    assert "E_UNAUTHORIZED" in kit.until(refused)
    auth_server.permit(both, ttl=1)
    before = kit.stored(nsqd)
    kit.until(lambda: not refused())
    assert kit.stored(nsqd) == before + 1


def test_a_subscription_outlives_its_permission_but_is_not_renewed(nsqd, auth_server, secret, kit):
    auth_server.permit(permission("orders", "subscribe", "publish"), ttl=1)
    receiver = kit.Recorder(kit.finish_all)
    kit.subscribe(nsqd.address, receiver, **secret).grant(1)
    auth_server.permit(permission("orders", "publish"), ttl=1)
    gevent.sleep(1.2)
    nsqd.http("/pub?topic=orders", b"x")
    kit.until(lambda: receiver.tally.finished == 1)
    assert denied(kit.subscribe, nsqd.address, kit.Recorder(), **secret).code == "E_UNAUTHORIZED"


def test_an_auth_server_that_goes_away_is_noticed_at_the_next_question(nsqd, auth_server, secret, kit):
    auth_server.permit(permission("orders", "publish"), ttl=1)
    producer = kit.producer(nsqd.address, **secret)
    producer.publish("orders", [b"x"])
    auth_server.status = 500
    gevent.sleep(1.2)
    with pytest.raises(PublishError, match="E_AUTH_FAILED AUTH failed") as caught:
        producer.publish("orders", [b"y"])
    assert caught.value.stored is False


# --- what nobody gets to see -----------------------------------------------------------------------------------


def test_the_secret_is_in_no_log_line_no_error_and_no_repr(nsqd, auth_server, secret, kit, caplog):
    url = f"nsq://{nsqd.address}?auth_secret_file={secret['auth_secret_file']}"
    with caplog.at_level(logging.DEBUG):
        connection = kit.subscribe(nsqd.address, kit.Recorder(), **secret)
        auth_server.permit()
        error = denied(kit.subscribe, nsqd.address, kit.Recorder(), **secret)
        [transport] = open_transports([url])
        with pytest.raises(BrokerUnreachable) as caught:
            transport.probe()
    seen = [
        caplog.text,
        str(caught.value),
        *map(repr, (error, vars(error), Options(**secret), vars(transport), vars(connection))),
    ]
    assert not [text for text in seen if SECRET in text]
    assert "authServer" in caplog.text


def test_workers_check_says_that_it_got_in_and_not_by_what(nsqd, auth_server, secret, tmp_path):
    (tmp_path / "shop.py").write_text("from framework import handler\n@handler('orders', 'billing')\ndef bill(m): ...\n")
    environment = os.environ | {"NSQ_AUTH_SECRET": SECRET, "PYTHONPATH": str(tmp_path)}
    for url, code in ((f"nsq://{nsqd.address}", 0), (f"nsq://{nsqd.address}?auth_secret={SECRET}", 2)):
        command = [sys.executable, "-m", "framework.cli", "check", "shop", "--broker", url, "--log-level", "debug"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        assert done.returncode == code, done
        assert SECRET not in done.stdout + done.stderr
    assert auth_server.asked


@pytest.mark.parametrize("name", ["auth_secret", "secret", "password", "token"])
def test_a_secret_in_a_url_is_refused_without_being_shown(name):
    with pytest.raises(BadSetting, match="into a file") as caught:
        open_transports([f"nsq://host:99999?heartbeet=1&{name}={SECRET}"])
    assert SECRET.split("&", maxsplit=1)[0] not in str(caught.value)
