"""TLS with real nsqds: whom a node and a worker trust, and in which sentence they do not."""

from __future__ import annotations

import ssl

import pytest

from framework.errors import BadSetting, BrokerUnreachable, NegotiationRefused, PublishError, TlsFailed
from framework.testing.certificates import Authority
from framework.transports import open_transports
from framework.transports.nsq.dial import dial
from framework.transports.nsq.urls import Options
from tests.transports.nsq.conftest import tls_flags

pytestmark = pytest.mark.real


def refused(address, kind=TlsFailed, **options):
    with pytest.raises(kind) as caught, dial(address, Options(tls=True, **options)) as line:
        line.expect_ok("SUB", b"SUB orders billing\n")
    return str(caught.value)


def test_a_certificate_is_verified_unless_told_otherwise(start_tls_nsqd, authority, tmp_path):
    nsqd = start_tls_nsqd()
    assert "tls_ca= names a file" in refused(nsqd.address)
    other = Authority(tmp_path, "other")
    assert "is not trusted" in refused(nsqd.address, tls_ca=str(other.cert))
    for options in ({"tls_ca": str(authority.cert)}, {"tls_insecure_skip_verify": True}):
        with dial(nsqd.address, Options(tls=True, **options)) as line:
            assert line.identity.tls_v1


def test_the_name_in_the_certificate_must_be_that_of_the_node(start_nsqd, authority):
    named = authority.sign("named", names=["DNS:nsqd.example"])
    nsqd = start_nsqd(*tls_flags(named))
    assert "tls_server_name=" in refused(nsqd.address, tls_ca=str(authority.cert))
    with dial(nsqd.address, Options(tls=True, tls_ca=str(authority.cert), tls_server_name="nsqd.example")) as line:
        assert line.identity.tls_v1
    assert "mismatch" in refused(nsqd.address, tls_ca=str(authority.cert), tls_server_name="other.example").lower()


def test_without_another_name_it_is_the_host_that_is_dialed(start_nsqd, authority):
    nsqd = start_nsqd(*tls_flags(authority.sign("local", names=["DNS:localhost"])))
    assert "mismatch" in refused(nsqd.address, tls_ca=str(authority.cert))
    with dial(f"localhost:{nsqd.tcp_port}", Options(tls=True, tls_ca=str(authority.cert))) as line:
        assert line.identity.tls_v1


def test_an_nsqd_that_wants_a_client_certificate_gets_it(start_tls_nsqd, authority, tmp_path, kit):
    nsqd = start_tls_nsqd("--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={authority.cert}")
    options = {"tls": True, "tls_ca": str(authority.cert)}
    assert "tls_cert=" in refused(nsqd.address, tls_ca=str(authority.cert))
    stranger = Authority(tmp_path, "other").sign("stranger")
    words = refused(
        nsqd.address, BrokerUnreachable, tls_ca=str(authority.cert), tls_cert=str(stranger.cert), tls_key=str(stranger.key)
    )
    assert nsqd.address in words
    ours = authority.sign("worker")
    connection = kit.subscribe(nsqd.address, kit.Recorder(), **options, tls_cert=str(ours.cert), tls_key=str(ours.key))
    assert connection.node == nsqd.address


def test_plaintext_is_refused_where_tls_was_asked_for(nsqd, kit):
    with pytest.raises(TlsFailed, match=f"{nsqd.address} grants no TLS"):
        kit.subscribe(nsqd.address, kit.Recorder(), tls=True)
    with pytest.raises(PublishError, match="grants no TLS"):
        kit.producer(nsqd.address, tls=True, deadline=0.5).publish("orders", [b"x"])
    assert nsqd.http("/stats?format=json")["topics"] == []


def test_an_nsqd_that_requires_tls_says_so_to_those_that_did_not_ask(start_tls_nsqd, kit):
    nsqd = start_tls_nsqd("--tls-required=tcp-https")
    with pytest.raises(NegotiationRefused, match=r"TLS required.*nsq\+tls://") as caught:
        kit.subscribe(nsqd.address, kit.Recorder())
    assert caught.value.words == "cannot SUB in current state (TLS required)"
    with pytest.raises(PublishError, match=r"nsq\+tls://"):
        kit.producer(nsqd.address).publish("orders", [b"x"])
    with pytest.raises(BrokerUnreachable, match=r"nsq\+tls://"):
        open_transports([f"nsq://{nsqd.address}"])[0].probe()


def test_versions_without_overlap_are_named(start_tls_nsqd, authority):
    nsqd = start_tls_nsqd("--tls-min-version=tls1.3")
    context = ssl.create_default_context(cafile=str(authority.cert))
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # what no option of ours says
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("framework.transports.nsq.credentials.tls_context", lambda options: context)
        assert "tls_min_version=" in refused(nsqd.address)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("tls_ca=/no/such/file", "tls_ca in a broker URL: /no/such/file cannot be used: No such file"),
        ("tls_ca={text}", "tls_ca"),
        ("tls_cert={text}", "tls_cert"),
        ("tls_cert={cert}&tls_key={other}", "tls_cert"),
        ("auth_secret_file=/no/such/file", "auth_secret_file='/no/such/file' in a broker URL: No such file"),
        ("auth_secret_file={empty}", "the file is empty"),
    ],
)
def test_files_that_cannot_be_used_are_named_before_anything_is_dialed(authority, pair, tmp_path, options, words):
    (tmp_path / "text").write_text("not a certificate")
    (tmp_path / "empty").write_text("\n")
    places = {"text": tmp_path / "text", "empty": tmp_path / "empty", "cert": pair.cert, "other": authority.pair.key}
    with pytest.raises(BadSetting, match=words):
        open_transports(["nsq+tls://127.0.0.1:1?" + options.format(**places)])


def test_nodes_that_a_lookupd_names_are_spoken_to_over_tls(start_tls_nsqd, start_nsqlookupd, authority, kit):
    lookupd = start_nsqlookupd()
    nsqd = start_tls_nsqd(f"--lookupd-tcp-address={lookupd.address}", "--tls-required=tcp-https")
    [transport] = open_transports([f"nsq+lookupd://{lookupd.http_address}?tls=true&tls_ca={authority.cert}"])
    kit.until(transport.nodes)
    producer = transport.producer()
    producer.publish("orders", [b"x"])
    producer.close()
    receiver = kit.Recorder(kit.finish_all)
    (node,) = kit.until(lambda: transport.discover("orders"))
    connection = transport.connect(node, "orders", "billing", receiver)
    connection.grant(1)
    kit.until(lambda: receiver.tally.finished == 1)
    assert nsqd.channel_stats("orders", "billing")["clients"][0]["tls"]
    connection.close()
