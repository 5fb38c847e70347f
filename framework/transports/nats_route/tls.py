"""Whom a route trusts, and what it shows: certificates on both sides, whoever dials. Nothing here is logged."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from gevent.ssl import SSLContext  # the standard one recurses for ever where gevent has patched

from framework.transports.nats.credentials import tls_context
from framework.transports.nats.urls import Secrets


class Contexts(NamedTuple):
    """None: without TLS."""

    client: ssl.SSLContext | None
    server: ssl.SSLContext | None


def contexts(secrets: Secrets) -> Contexts:
    """Read anew from their files each time, which may be replaced while a worker runs. Raises BadSetting."""
    if not secrets.tls_cert:
        return Contexts(None, None)
    server: ssl.SSLContext = SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    client = tls_context(secrets)  # says what is wrong with the files
    server.load_verify_locations(secrets.tls_ca)
    server.load_cert_chain(secrets.tls_cert, secrets.tls_key or secrets.tls_cert, password="")
    return Contexts(client, server)
