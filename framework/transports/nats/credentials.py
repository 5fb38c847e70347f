"""What a connection trusts and shows: the TLS context, and the signature of a nonce by an NKEY. Nothing here is logged.

Files are read again at each connection, so that they can be replaced while a worker runs. Source: the client protocol of the NATS
documentation, CONNECT; ADR-14 for NKEYs.
"""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

from gevent.ssl import SSLContext  # the standard one recurses for ever where gevent has patched

from framework.errors import BadSetting, TlsFailed
from framework.transports.addresses import split_address
from framework.transports.nats.urls import Options, Secrets


def check(options: Options, secrets: Secrets) -> None:
    """Raises BadSetting, at start, for files that cannot be used, and for an NKEY where the library is not installed."""
    if options.tls or secrets.tls_ca or secrets.tls_cert:
        tls_context(secrets)
    if secrets.nkey_file:
        signed(secrets, "nonce")


def tls_context(secrets: Secrets) -> ssl.SSLContext:
    """Raises BadSetting."""
    context: ssl.SSLContext = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if secrets.tls_ca:
            context.load_verify_locations(secrets.tls_ca)
        else:
            context.load_default_certs()
        if secrets.tls_cert:  # an empty passphrase, or OpenSSL would ask for one on the terminal
            context.load_cert_chain(secrets.tls_cert, secrets.tls_key or secrets.tls_cert, password="")
    except (OSError, ValueError) as error:
        why = (isinstance(error, ssl.SSLError) and error.reason) or getattr(error, "strerror", None) or str(error)
        raise BadSetting(
            f"tls_ca, tls_cert or tls_key in a broker URL cannot be used: {why}; give PEM files, the key without a passphrase"
        ) from None
    return context


def server_name(server: str) -> str:
    """Whose certificate ``server`` must have."""
    return split_address(server)[0].partition("%")[0]


def refusal(server: str, error: ssl.SSLError) -> TlsFailed:
    """``error`` of a handshake, in a sentence that names the option."""
    words = getattr(error, "verify_message", "") or (error.reason or str(error.args[-1])).replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(f"nats-server {server} shows a certificate that is not trusted: {words}; tls_ca= names a file to trust")
    fix = "; it wants a client certificate that it trusts: tls_cert=, tls_key=" if "certificate" in words else ""
    return TlsFailed(f"no TLS with nats-server {server}: {words}{fix}")


def signed(secrets: Secrets, nonce: str) -> dict[str, object]:
    """The fields of CONNECT that prove who we are by an NKEY; empty where there is none. Raises BadSetting."""
    if not secrets.nkey_file:
        return {}
    try:
        import nkeys  # noqa: PLC0415 - the extra brings it
    except ImportError:
        raise BadSetting("nkey_file= in a broker URL: install the library, by pip install 'nsq-workers[nats]'") from None
    try:
        pair = nkeys.from_seed(Path(secrets.nkey_file).read_bytes().strip())
        signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
        return {"nkey": pair.public_key.decode(), "sig": signature}
    except OSError as error:
        raise BadSetting(f"nkey_file={secrets.nkey_file!r} in a broker URL: {error.strerror}") from None
    except Exception:  # whatever the library says of a seed, it must not be shown
        raise BadSetting(f"nkey_file={secrets.nkey_file!r} in a broker URL: there is no seed of an NKEY in it") from None
