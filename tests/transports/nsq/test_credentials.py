"""Files of certificates and secrets that cannot be used: which one, and why, is said when a worker starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.errors import BadSetting
from framework.transports.nsq import credentials
from framework.transports.nsq.urls import Options


@pytest.mark.parametrize(
    ("text", "why"), [(None, "No such file or directory"), ("no certificate", "NO_CERTIFICATE_OR_CRL_FOUND")]
)
def test_a_file_that_holds_no_authority_is_named_with_the_reason(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "ca.pem"
    if text is not None:
        file.write_text(text)
    words = f"tls_ca in a broker URL: {file} cannot be used: {why}; give PEM files"
    for options in (Options(tls_ca=str(file)), Options(tls=True, tls_ca=str(file))):
        with pytest.raises(BadSetting, match=words):
            credentials.check(options)


def test_a_certificate_is_named_with_its_key(tmp_path: Path) -> None:
    cert = tmp_path / "cert.pem"
    cert.write_text("no certificate")
    for key, shown in (("", cert), (str(tmp_path / "key.pem"), tmp_path / "key.pem")):
        with pytest.raises(BadSetting, match=f"tls_cert in a broker URL: {cert}, {shown} cannot be used: "):
            credentials.check(Options(tls_cert=str(cert), tls_key=key))


def test_a_name_that_no_file_can_have_is_said_as_it_is() -> None:
    with pytest.raises(BadSetting, match=r"tls_ca in a broker URL: .* cannot be used: embedded null byte"):
        credentials._load("tls_ca", "a\0b", lambda: Path("a\0b").read_bytes())


@pytest.mark.parametrize(
    ("text", "secret"), [("hunter2", b"hunter2"), ("hunter2\r\n", b"hunter2"), (" hunter2 \n\n", b" hunter2 ")]
)
def test_a_secret_is_the_file_without_the_end_of_its_line(tmp_path: Path, text: str, secret: bytes) -> None:
    file = tmp_path / "secret"
    file.write_bytes(text.encode())
    assert credentials.auth_secret(Options(auth_secret_file=str(file))) == secret


@pytest.mark.parametrize(("text", "why"), [(None, "No such file or directory"), ("\n", "the file is empty")])
def test_a_secret_that_is_none_is_said_at_the_start(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "secret"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadSetting, match=f"auth_secret_file='{file}' in a broker URL: {why}"):
        credentials.check(Options(auth_secret_file=str(file)))


def test_without_a_file_the_secret_is_in_the_environment_or_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(credentials.VARIABLE, "hunter2")
    assert credentials.auth_secret(Options()) == b"hunter2"
    monkeypatch.delenv(credentials.VARIABLE)
    assert credentials.auth_secret(Options()) == b""


@pytest.mark.parametrize(("node", "given", "name"), [
    ("nsqd.example:4150", "", "nsqd.example"), ("[fe80::1%eth0]:4150", "", "fe80::1"), ("a:1", "other", "other"),
    ("/run/nsqd.sock", "other", "other"), ("/run/nsqd.sock", "", None),
])  # fmt: skip
def test_whose_certificate_a_node_must_have(node: str, given: str, name: str | None) -> None:
    assert credentials.server_name(Options(tls_server_name=given), node) == name


def test_where_nobody_looks_at_certificates_that_is_said_once_it_is_set(caplog: pytest.LogCaptureFixture) -> None:
    credentials.check(Options(tls=True))
    assert caplog.records == []
    credentials.check(Options(tls=True, tls_insecure_skip_verify=True))
    assert "any certificate is trusted" in caplog.text
