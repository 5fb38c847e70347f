"""What a connection trusts and shows where TLS is asked for. Nothing here is logged.

Files are read again at each connection, so that they can be replaced while a worker runs.
"""

from __future__ import annotations

import ssl

from gevent.ssl import SSLContext  # the standard one recurses for ever where gevent has patched

from framework.errors import BadSetting, TlsFailed
from framework.transports.rocketmq.urls import Secrets


def context(secrets: Secrets) -> ssl.SSLContext:
    """Raises BadSetting."""
    made: ssl.SSLContext = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if secrets.tls_ca:
            made.load_verify_locations(secrets.tls_ca)
        else:
            made.load_default_certs()
        if secrets.tls_cert:  # an empty passphrase, or OpenSSL would ask for one on the terminal
            made.load_cert_chain(secrets.tls_cert, secrets.tls_key or secrets.tls_cert, password="")
    except (OSError, ValueError) as error:
        why = (isinstance(error, ssl.SSLError) and error.reason) or getattr(error, "strerror", None) or str(error)
        raise BadSetting(
            f"tls_ca, tls_cert or tls_key in a broker URL cannot be used: {why}; give PEM files, the key without a passphrase"
        ) from None
    return made


def ended_by(error: OSError) -> str:
    """What ended a connection, in words: by TLS 1.3 a server says behind the handshake that a client has shown it nothing."""
    if isinstance(error, ssl.SSLError) and "CERTIFICATE" in (error.reason or ""):
        words = error.reason.replace("_", " ").lower()
        return f"it does not take the certificate that it was shown, or was shown none ({words}): tls_cert= and tls_key= name one"
    return str(error)


def refusal(server: str, error: ssl.SSLError) -> TlsFailed:
    """``error`` of a handshake, in a sentence that names the option."""
    words = getattr(error, "verify_message", "") or (error.reason or str(error.args[-1])).replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(f"RocketMQ at {server} shows a certificate that is not trusted: {words}; tls_ca= names a file to trust")
    return TlsFailed(f"no TLS with RocketMQ at {server}: {words}; its tls.server.mode may be disabled")
