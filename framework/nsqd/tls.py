"""nsqd's TLS flags as an SSLContext, and the names that /stats gives of a connection. Source: nsqd v1.3.0 buildTLSConfig."""

from __future__ import annotations

import ssl

from gevent.ssl import SSLContext

from framework.errors import WrongUse
from framework.nsqd.options import TLS_VERSIONS, Options
from framework.transports.nsq.stream import Tls

_GO_CIPHERS = {
    "ECDHE-RSA-AES128-GCM-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
}


def context(options: Options) -> ssl.SSLContext | None:
    """None without a certificate. Raises WrongUse in one sentence."""
    if not (options.tls_cert or options.tls_key):
        if options.tls_required or options.tls_client_auth_policy:
            raise WrongUse("cannot require TLS client connections without TLS key and cert: give -tls-cert and -tls-key")
        return None
    made: ssl.SSLContext = SSLContext(ssl.PROTOCOL_TLS_SERVER)  # gevent's, or an HTTPS client would block the hub
    made.minimum_version = TLS_VERSIONS[options.tls_min_version]
    try:
        made.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ValueError) as error:
        raise WrongUse(f"cannot use -tls-cert {options.tls_cert} with -tls-key {options.tls_key}: {_words(error)}") from error
    if options.tls_client_auth_policy:
        made.verify_mode = ssl.CERT_REQUIRED
        _trust(made, options)
    return made


def _trust(made: ssl.SSLContext, options: Options) -> None:
    if not options.tls_root_ca_file:
        raise WrongUse(
            f"-tls-client-auth-policy={options.tls_client_auth_policy} needs -tls-root-ca-file: "
            "a client's certificate is always held against one here"
        )
    try:
        made.load_verify_locations(options.tls_root_ca_file)
    except OSError as error:
        raise WrongUse(f"cannot use -tls-root-ca-file {options.tls_root_ca_file}: {_words(error)}") from error


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(reason or error)


def stats(tls: Tls | None) -> dict[str, object]:
    """What /stats says of a client's TLS."""
    cipher = tls.cipher if tls else ""
    return {
        "tls": tls is not None,
        "tls_cipher_suite": _GO_CIPHERS.get(cipher, cipher),
        "tls_version": tls.version.replace("TLSv", "TLS") if tls else "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": tls is not None,  # what Go always says
    }
