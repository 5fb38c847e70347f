"""What a connection to RocketMQ trusts and shows where TLS is asked for, and its errors in words that name the options."""

from __future__ import annotations

import ssl

from framework.errors import TlsFailed
from framework.transports.client_tls import client_context, words_of_handshake
from framework.transports.rocketmq.urls import Secrets


def context(secrets: Secrets) -> ssl.SSLContext:
    """Raises BadSetting."""
    return client_context(secrets.tls_ca, secrets.tls_cert, secrets.tls_key)


def ended_by(error: OSError) -> str:
    """What ended a connection, in words: by TLS 1.3 a server says behind the handshake that a client has shown it nothing."""
    if isinstance(error, ssl.SSLError) and "CERTIFICATE" in (error.reason or ""):
        words = error.reason.replace("_", " ").lower()
        return f"it does not take the certificate that it was shown, or was shown none ({words}): tls_cert= and tls_key= name one"
    return str(error)


def refusal(server: str, error: ssl.SSLError) -> TlsFailed:
    """``error`` of a handshake, in a sentence that names the option."""
    words = words_of_handshake(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(f"RocketMQ at {server} shows a certificate that is not trusted: {words}; tls_ca= names a file to trust")
    return TlsFailed(f"no TLS with RocketMQ at {server}: {words}; its tls.server.mode may be disabled")
