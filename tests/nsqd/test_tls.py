"""nsqd's flags for TLS: what cannot be is refused with the file and the reason, what can be is in force."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import WrongUse
from framework.nsqd import tls
from framework.nsqd.options import parse
from framework.testing.certificates import Authority, Pair


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.sign("nsqd")


def context(*flags: str) -> ssl.SSLContext | None:
    return tls.context(parse(list(flags)))


def flags(pair: Pair) -> list[str]:
    return [f"--tls-cert={pair.cert}", f"--tls-key={pair.key}"]


def refused(*flags: str) -> str:
    with pytest.raises(WrongUse) as raised:
        context(*flags)
    return str(raised.value)


def test_without_a_certificate_there_is_none_and_none_can_be_required() -> None:
    assert context() is None
    for flag in ("--tls-required", "--tls-required=tcp-https", "--tls-client-auth-policy=require"):
        assert refused(flag).startswith("cannot require TLS client connections without TLS key and cert")


def test_a_certificate_is_served_and_clients_need_none(pair: Pair) -> None:
    made = context(*flags(pair))
    assert made is not None
    assert (made.verify_mode, made.minimum_version) == (ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2)


def test_older_versions_are_refused_as_was_said(pair: Pair) -> None:
    made = context(*flags(pair), "--tls-min-version=tls1.3")
    assert made is not None
    assert made.minimum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(("missing", "reason"), [
    ("--tls-cert", "No such file or directory"), ("--tls-key", "No such file or directory"),
])  # fmt: skip
def test_a_file_that_is_not_there_is_named_with_the_reason(pair: Pair, missing: str, reason: str) -> None:
    given = [f"{missing}=/nowhere" if flag.startswith(missing) else flag for flag in flags(pair)]
    cert, key = (flag.partition("=")[2] for flag in given)
    assert refused(*given) == f"cannot use -tls-cert {cert} with -tls-key {key}: {reason}"


def test_a_key_of_another_is_named_with_the_reason(pair: Pair, authority: Authority) -> None:
    said = refused(f"--tls-cert={pair.cert}", f"--tls-key={authority.sign('other').key}")
    assert said.endswith("other.key: KEY_VALUES_MISMATCH")


def test_one_without_the_other_is_refused(pair: Pair) -> None:
    assert "cannot use -tls-cert  with -tls-key" in refused(f"--tls-key={pair.key}")


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_clients_need_a_certificate_of_those_that_are_trusted(pair: Pair, authority: Authority, policy: str) -> None:
    asked = [*flags(pair), f"--tls-client-auth-policy={policy}"]
    assert re.match(rf"-tls-client-auth-policy={policy} needs -tls-root-ca-file", refused(*asked))
    made = context(*asked, f"--tls-root-ca-file={authority.pair.cert}")
    assert made is not None
    assert made.verify_mode == ssl.CERT_REQUIRED
    assert len(made.get_ca_certs()) == 1


def test_trusted_ones_that_cannot_be_read_are_named_with_the_reason(pair: Pair, tmp_path: Path) -> None:
    asked = [*flags(pair), "--tls-client-auth-policy=require", "--tls-root-ca-file"]
    assert refused(*asked, "/nowhere") == "cannot use -tls-root-ca-file /nowhere: No such file or directory"
    (tmp_path / "empty").write_text("")
    assert (
        refused(*asked, str(tmp_path / "empty")) == f"cannot use -tls-root-ca-file {tmp_path}/empty: NO_CERTIFICATE_OR_CRL_FOUND"
    )


@pytest.mark.parametrize(("cipher", "name"), [
    ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"), ("TLS_AES_256_GCM_SHA384",) * 2,
])  # fmt: skip
def test_a_connection_is_told_by_the_names_that_go_has(cipher: str, name: str) -> None:
    connection: Any = SimpleNamespace(cipher=cipher, version="TLSv1.3")
    assert tls.stats(connection) == {
        "tls": True, "tls_cipher_suite": name, "tls_version": "TLS1.3", "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": True,
    }  # fmt: skip


def test_of_one_in_the_clear_nothing_is_told() -> None:
    assert tls.stats(None) == {
        "tls": False, "tls_cipher_suite": "", "tls_version": "", "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }  # fmt: skip
