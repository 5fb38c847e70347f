"""What a connection trusts and shows: the TLS context, the signature of a nonce by an NKEY, a JWT. Nothing here is logged.

Files are read again at each connection, so that they can be replaced while a worker runs. Source: the client protocol of the NATS
documentation, CONNECT; ADR-14 for NKEYs and JWTs.
"""

from __future__ import annotations

import base64
import re
import ssl
from ipaddress import ip_address
from pathlib import Path

import msgspec

from framework.decoding import prepared
from framework.errors import BadSetting, TlsFailed
from framework.transports.addresses import split_address
from framework.transports.client_tls import client_context, words_of_handshake
from framework.transports.nats.urls import Options, Secrets

_PART = re.compile(rb"-{3,} *BEGIN [A-Z ]*\b(JWT|NKEY SEED) *-{3,}\s+(\S+)\s+-{3,} *END")
"""Of a credentials file."""


@prepared
class _Claims(msgspec.Struct, frozen=True):
    """Of a JWT. ``sub``: a public key."""

    sub: str = ""


def check(options: Options, secrets: Secrets) -> None:
    """Raises BadSetting, at start, for files that cannot be used, and for an NKEY or a JWT where the library is not installed."""
    if options.tls or secrets.tls_ca or secrets.tls_cert:
        tls_context(secrets)
    signed(secrets, "nonce")


def tls_context(secrets: Secrets) -> ssl.SSLContext:
    """Raises BadSetting."""
    return client_context(secrets.tls_ca, secrets.tls_cert, secrets.tls_key)


def server_name(server: str) -> str:
    """Whose certificate ``server`` must have."""
    return split_address(server)[0].partition("%")[0]


def is_number(server: str) -> bool:
    """It is named by an IP address."""
    try:
        ip_address(server_name(server))
    except ValueError:
        return False
    return True


def refusal(server: str, error: ssl.SSLError) -> TlsFailed:
    """``error`` of a handshake, in a sentence that names the option."""
    words = words_of_handshake(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        fix = "" if "expired" in words else "; tls_ca= names a file to trust"
        return TlsFailed(f"nats-server {server} shows a certificate that is not trusted: {words}{fix}")
    fix = "; it wants a client certificate that it trusts: tls_cert=, tls_key=" if "certificate" in words else ""
    if "expired" in words:
        fix = "; that of tls_cert= is out of date"
    return TlsFailed(f"no TLS with nats-server {server}: {words}{fix}")


def signed(secrets: Secrets, nonce: str) -> dict[str, object]:
    """The fields of CONNECT that prove who we are by an NKEY, and by a JWT beside it; empty where there is none. Raises
    BadSetting."""
    if secrets.creds_file:
        return _signed_by_creds(secrets.creds_file, nonce)
    if secrets.nkey_file:
        seed = _content("nkey_file", secrets.nkey_file).strip()
        public, signature = _signature("nkey_file", secrets.nkey_file, seed, nonce)
        return {"nkey": public, "sig": signature}
    return {}


def _signed_by_creds(file: str, nonce: str) -> dict[str, object]:
    parts = dict(_PART.findall(_content("creds_file", file)))
    jwt = parts.get(b"JWT", b"").decode(errors="replace")
    public, signature = _signature("creds_file", file, parts.get(b"NKEY SEED", b""), nonce)
    user = _user(jwt)
    if user != public:
        why = "the seed in it is of another user than the JWT" if user else "there is no JWT of a user in it"
        raise BadSetting(f"creds_file={file!r} in a broker URL: {why}")
    return {"jwt": jwt, "sig": signature}


def _user(jwt: str) -> str:
    """The public key of whom ``jwt`` is; empty where that cannot be read."""
    _, _, rest = jwt.partition(".")
    claims = rest.partition(".")[0]
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)), type=_Claims).sub
    except (ValueError, msgspec.DecodeError):
        return ""


def _content(option: str, file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise BadSetting(f"{option}={file!r} in a broker URL: {error.strerror}") from None


def _signature(option: str, file: str, seed: bytes, nonce: str) -> tuple[str, str]:
    """The public key of ``seed``, and ``nonce`` signed by it."""
    try:
        import nkeys  # noqa: PLC0415 - the extra brings it
    except ImportError:
        raise BadSetting(f"{option}= in a broker URL: install the library, by pip install 'nsq-workers[nats]'") from None
    try:
        pair = nkeys.from_seed(seed)
        return pair.public_key.decode(), base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
    except Exception:  # whatever the library says of a seed, it must not be shown
        raise BadSetting(f"{option}={file!r} in a broker URL: there is no seed of an NKEY in it") from None
