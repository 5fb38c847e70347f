"""TLS and NKEYs, each against a real server that demands it: we are let in with the right files, and told which one is wrong."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import nkeys
import pytest

from framework.errors import BadSetting, BrokerRefuses, BrokerUnreachable
from framework.testing.certificates import Authority
from framework.testing.servers import ServerMissing
from framework.transports import open_transports
from framework.transports.nats import credentials
from framework.transports.nats.dial import Way, dial
from framework.transports.nats.urls import Secrets
from tests.conftest import missing

from .conftest import until

pytestmark = pytest.mark.real


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    try:
        return Authority(tmp_path)
    except ServerMissing as error:
        missing(str(error))
        raise


def tls_of(authority: Authority, more: str = "") -> str:
    pair = authority.sign("server")
    return f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", ca_file: "{authority.cert}" {more} }}'


def there_and_back(url: str, body: bytes = b"x" * 300_000) -> None:
    (transport,) = open_transports([url])
    from framework.testing.conformance.receiver import Held

    held = Held(lambda receiver: transport.connect(*transport.discover("orders", "billing"), "orders", "billing", receiver))
    held.grant(5)
    producer = transport.producer()
    producer.publish("orders", [body, b"small"])
    until(lambda: held.bodies == [body, b"small"])
    for message in held.taken:
        held.connection.finish(message)
    until(lambda: not any(transport.backlog("orders", "billing").values()))
    held.connection.close()
    until(lambda: held.receiver.closings)
    producer.close()
    held.check()


@pytest.mark.parametrize("scheme", ["tls", "nats+tls", "nats"])
def test_messages_come_and_go_over_tls_where_the_server_demands_it(start_nats, authority, scheme):
    server = start_nats(tls_of(authority))
    there_and_back(f"{scheme}://{server.address}?tls_ca={authority.cert}")


@pytest.fixture
def tls_first(start_nats, authority):
    """A server that says nothing before TLS."""
    return start_nats(tls_of(authority, ", handshake_first: true"))


def test_tls_comes_first_where_the_server_begins_with_it(tls_first, authority):
    there_and_back(f"nats://{tls_first.address}?tls_first=true&tls_ca={authority.cert}")


def test_what_a_server_says_in_one_breath_with_the_end_of_its_handshake_is_heard(tls_first, authority, monkeypatch):
    """In TLS 1.2 the last word is the server's."""
    made = credentials.tls_context

    def older(secrets: Secrets) -> ssl.SSLContext:
        context = made(secrets)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        return context

    monkeypatch.setattr(credentials, "tls_context", older)
    way = Way(tls_first=True, secrets=Secrets(tls_ca=str(authority.cert)))
    for _ in range(50):
        with dial(tls_first.address, way, timeout=2.0) as line:
            assert line.info.tls_required


def test_a_server_that_waits_for_tls_and_a_client_that_waits_for_its_first_word_are_told_apart(tls_first):
    with (
        pytest.raises(BrokerUnreachable, match="one with handshake_first needs tls_first=true"),
        dial(tls_first.address, timeout=0.5),
    ):
        pass


def test_a_server_that_begins_with_info_is_no_server_for_tls_first(start_nats, authority):
    (transport,) = open_transports([f"nats://{start_nats(tls_of(authority)).address}?tls_first=true&tls_ca={authority.cert}"])
    with pytest.raises(BrokerRefuses, match="no TLS with nats-server"):
        transport.probe()


def test_a_client_certificate_is_shown_where_the_server_verifies_it(start_nats, authority):
    server = start_nats(tls_of(authority, ", verify: true"))
    mine = authority.sign("client")
    there_and_back(f"tls://{server.address}?tls_ca={authority.cert}&tls_cert={mine.cert}&tls_key={mine.key}", b"hello")
    (bare,) = open_transports([f"tls://{server.address}?tls_ca={authority.cert}"])
    with pytest.raises(BrokerRefuses, match="it wants a client certificate that it trusts: tls_cert="):
        bare.probe()


def test_a_server_whose_certificate_nobody_trusts_is_not_told_who_we_are(start_nats, authority):
    server = start_nats(tls_of(authority))
    (transport,) = open_transports([f"tls://me:hush@{server.address}"])
    with pytest.raises(BrokerRefuses, match=r"certificate that is not trusted.*tls_ca= names a file to trust") as refused:
        transport.probe()
    assert "hush" not in str(refused.value)


def test_a_certificate_that_has_expired_is_said_to_have():
    """No other authority makes it good."""
    theirs, ours = ssl.SSLCertVerificationError(1, "x"), ssl.SSLError(1, "x")
    theirs.verify_message = "certificate has expired"
    ours.reason = "SSLV3_ALERT_CERTIFICATE_EXPIRED"
    assert str(credentials.refusal("nats1:4222", theirs)).endswith("that is not trusted: certificate has expired")
    assert str(credentials.refusal("nats1:4222", ours)).endswith("; that of tls_cert= is out of date")


def test_tls_that_the_server_does_not_speak_is_refused_before_anything_is_said(start_nats):
    server = start_nats()
    (transport,) = open_transports([f"tls://{server.address}"])
    with pytest.raises(BrokerRefuses, match="speaks no TLS, which was asked for"):
        transport.probe()


def seed_file(folder: Path, name: str) -> tuple[Path, str]:
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    file = folder / name
    file.write_bytes(seed + b"\n")
    return file, nkeys.from_seed(seed).public_key.decode()


def test_an_nkey_lets_us_in_and_another_does_not(start_nats, tmp_path):
    mine, public = seed_file(tmp_path, "mine.nk")
    other, _ = seed_file(tmp_path, "other.nk")
    server = start_nats(f"authorization {{ users: [ {{ nkey: {public} }} ] }}")
    there_and_back(f"nats://{server.address}?nkey_file={mine}", b"hello")
    (transport,) = open_transports([f"nats://{server.address}?nkey_file={other}"])
    with pytest.raises(BrokerRefuses, match="nkey_file="):
        transport.probe()


@pytest.mark.parametrize("content", [None, b"", b"SUnonsense\n"])
def test_a_file_without_a_seed_is_refused_at_start_and_not_shown(tmp_path, content):
    file = tmp_path / "seed"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadSetting, match="nkey_file=") as refused:
        open_transports([f"nats://host?nkey_file={file}"])
    assert "nonsense" not in str(refused.value)


@pytest.mark.parametrize(
    "options", ["tls_ca=/nowhere.pem", "tls_key=/a.key", "tls=maybe", "tls_first=yes", "tls_cert=/nowhere.pem"]
)
def test_files_that_cannot_be_used_are_refused_at_start(options):
    with pytest.raises(BadSetting, match="tls"):
        open_transports([f"tls://host?{options}"])
