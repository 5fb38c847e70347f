"""The TLS context of a client, from the files that a broker URL names, and what an error of a handshake says. Nothing is logged.

The files are read again at each connection, so that they can be replaced while a worker runs.
"""

from __future__ import annotations

import ssl

from gevent.ssl import SSLContext  # the standard one recurses for ever where gevent has patched

from framework.errors import BadSetting


def client_context(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """``ca``: the file of what is trusted, empty for the system's; ``cert`` and ``key``: what is shown. Raises BadSetting."""
    made: ssl.SSLContext = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca:
            made.load_verify_locations(ca)
        else:
            made.load_default_certs()
        if cert:  # an empty passphrase, or OpenSSL would ask for one on the terminal
            made.load_cert_chain(cert, key or cert, password="")
    except (OSError, ValueError) as error:
        why = (isinstance(error, ssl.SSLError) and error.reason) or getattr(error, "strerror", None) or str(error)
        raise BadSetting(
            f"tls_ca, tls_cert or tls_key in a broker URL cannot be used: {why}; give PEM files, the key without a passphrase"
        ) from None
    return made


def words_of_handshake(error: ssl.SSLError) -> str:
    """What went wrong, in lower case and without OpenSSL's underscores."""
    return getattr(error, "verify_message", "") or (error.reason or str(error.args[-1])).replace("_", " ").lower()
