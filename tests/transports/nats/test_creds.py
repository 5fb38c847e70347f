"""Credentials files of users of an account, against a real server that trusts an operator: its JWTs are written here."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import nkeys
import pytest

from framework.errors import BadSetting, BrokerRefuses
from framework.testing.servers import Server
from framework.transports import open_transports
from framework.transports.nats.dial import Way, dial
from framework.transports.nats.session import Session
from framework.transports.nats.urls import Secrets

from .conftest import until
from .test_tls import there_and_back

pytestmark = pytest.mark.real


class Identity:
    """A pair of keys, which signs JWTs of others."""

    def __init__(self, prefix: int) -> None:
        self.seed: bytes = nkeys.encode_seed(os.urandom(32), prefix)
        self._pair = nkeys.from_seed(self.seed)
        self.public: str = self._pair.public_key.decode()

    def jwt(self, subject: Identity, kind: str, *, expires: float = 0.0, **claims: object) -> str:
        """``claims``: under ``nats``. ``expires``: seconds since 1970."""
        body: dict[str, object] = {
            "jti": base64.b32encode(os.urandom(20)).decode(), "iat": int(time.time()), "iss": self.public, "name": kind,
            "sub": subject.public, "nats": {"type": kind, "version": 2, **claims},
        }  # fmt: skip
        if expires:
            body["exp"] = int(expires)
        signed = f"{_encoded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encoded(body)}"
        return f"{signed}.{_base64(self._pair.sign(signed.encode()))}"


def _encoded(value: dict[str, object]) -> str:
    return _base64(json.dumps(value).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def creds(jwt: str, seed: bytes) -> str:
    """A credentials file, as `nsc` writes it."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\nNKEY Seed printed below can be used to sign and prove "
        f"identity.\n\n-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n\n"
        "*************************************************************\n"
    )


class Operator:
    """Whom a server trusts, with one account, which has JetStream without limits."""

    def __init__(self) -> None:
        self._operator, self.account = Identity(nkeys.PREFIX_BYTE_OPERATOR), Identity(nkeys.PREFIX_BYTE_ACCOUNT)
        self._system = Identity(nkeys.PREFIX_BYTE_ACCOUNT)

    @property
    def config(self) -> str:
        everything = dict.fromkeys(
            (
                "subs",
                "data",
                "payload",
                "imports",
                "exports",
                "conn",
                "leaf",
                "mem_storage",
                "disk_storage",
                "streams",
                "consumer",
            ),
            -1,
        )
        limits = {**everything, "wildcards": True}
        operator = self._operator.jwt(self._operator, "operator")
        accounts = {one.public: self._operator.jwt(one, "account", limits=limits) for one in (self.account,)}
        accounts[self._system.public] = self._operator.jwt(
            self._system, "account", limits={**limits, "disk_storage": 0, "mem_storage": 0}
        )
        preload = "\n".join(f"{public}: {jwt}" for public, jwt in accounts.items())
        return f"operator: {operator}\nsystem_account: {self._system.public}\nresolver: MEMORY\nresolver_preload {{ {preload} }}"

    def creds(self, *, by: Identity | None = None, expires: float = 0.0) -> str:
        user = Identity(nkeys.PREFIX_BYTE_USER)
        limits = {"subs": -1, "data": -1, "payload": -1}
        return creds((by or self.account).jwt(user, "user", expires=expires, pub={}, sub={}, **limits), user.seed)


@pytest.fixture
def operator() -> Operator:
    return Operator()


@pytest.fixture
def server(operator: Operator, start_nats: Callable[..., Server]) -> Server:
    return start_nats(operator.config)


def test_the_user_of_a_credentials_file_is_let_in_and_others_are_not(server, operator, tmp_path: Path):
    mine, stranger = tmp_path / "mine.creds", tmp_path / "stranger.creds"
    mine.write_text(operator.creds())
    stranger.write_text(operator.creds(by=Identity(nkeys.PREFIX_BYTE_ACCOUNT)))
    there_and_back(f"nats://{server.address}?creds_file={mine}", b"hello")
    for wrong in ("", f"?creds_file={stranger}"):
        (transport,) = open_transports([f"nats://{server.address}{wrong}"])
        with pytest.raises(BrokerRefuses, match=r"what is in nkey_file= or creds_file="):
            transport.probe()


def test_a_file_that_is_renewed_is_read_again_when_the_server_ends_what_has_expired(server, operator, tmp_path: Path):
    file = tmp_path / "short.creds"
    file.write_text(operator.creds(expires=time.time() + 2))
    (transport,) = open_transports([f"nats://{server.address}?creds_file={file}"])
    producer = transport.producer()
    producer.publish("orders", [b"x"])
    with dial(server.address, Way(secrets=Secrets(creds_file=str(file)))) as line:
        neighbour = Session(line, 30.0)
    file.write_text(operator.creds())
    until(lambda: neighbour.error is not None)
    producer.publish("orders", [b"y"], timeout=10.0)
    until(lambda: transport.backlog("orders", "billing") == {server.address: 2})
    producer.close()


SEED = Identity(nkeys.PREFIX_BYTE_USER).seed
OTHERS = Identity(nkeys.PREFIX_BYTE_ACCOUNT).jwt(Identity(nkeys.PREFIX_BYTE_USER), "user")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("", "no seed of an NKEY"),
        (creds("nonsense", b"SUnonsense"), "no seed of an NKEY"),
        (creds("nonsense", SEED), "no JWT of a user"),
        (creds("e30.bm9uc2Vuc2U.nonsense", SEED), "no JWT of a user"),
        (f"-----BEGIN USER NKEY SEED-----\n{SEED.decode()}\n------END USER NKEY SEED------\n", "no JWT of a user"),
        (creds(OTHERS, SEED), "the seed in it is of another user than the JWT"),
    ],
    # Made up anew in each process, and several processes share out the tests by their names.
    ids=["no file", "empty", "no seed", "no JWT", "a JWT that is none", "a seed alone", "another's JWT"],
)
def test_a_credentials_file_that_cannot_be_used_is_refused_at_start_and_not_shown(tmp_path: Path, content, words):
    file = tmp_path / "my.creds"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadSetting, match=rf"creds_file='{file}' in a broker URL: .*{words}") as refused:
        open_transports([f"nats://host?creds_file={file}"])
    assert not any(secret in str(refused.value) for secret in ("nonsense", SEED.decode(), OTHERS))


def test_one_of_two_ways_to_say_who_we_are_is_asked_for():
    with pytest.raises(BadSetting, match="give one of them"):
        open_transports(["nats://host?creds_file=a&nkey_file=b"])
