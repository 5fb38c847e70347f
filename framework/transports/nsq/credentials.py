"""What a connection trusts and shows: the TLS context and the secret for AUTH, read from the files that the options name.

Read again at each connection, so that certificates and secrets can be replaced while a worker runs. Nothing here is logged.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from gevent.ssl import SSLContext  # the standard one recurses for ever where gevent has patched

from framework.errors import BadSetting, TlsFailed
from framework.observe import hublog
from framework.transports.nsq.urls import Options, split_address

log = hublog.get(__name__)

VARIABLE = "NSQ_AUTH_SECRET"
_OLDEST = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def check(options: Options) -> None:
    """Raises BadSetting, at start, for files that cannot be used, and for snappy where it is not installed."""
    if options.tls or options.tls_ca or options.tls_cert:
        tls_context(options)
    if options.tls_insecure_skip_verify:
        log.warning("tls_insecure_skip_verify: any certificate is trusted; whoever is on the way can read and change everything")
    if options.auth_secret_file:
        auth_secret(options)
    if options.snappy:
        try:
            import snappy  # noqa: F401, PLC0415
        except ImportError:
            raise BadSetting("snappy=true in a broker URL: install it, by pip install python-snappy") from None


def auth_secret(options: Options) -> bytes:
    """The secret, without the line's end; b"" where none is given. Raises BadSetting."""
    if not options.auth_secret_file:
        return os.environ.get(VARIABLE, "").encode()
    try:
        secret = Path(options.auth_secret_file).read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise BadSetting(f"auth_secret_file={options.auth_secret_file!r} in a broker URL: {error.strerror}") from None
    if not secret:
        raise BadSetting(f"auth_secret_file={options.auth_secret_file!r} in a broker URL: the file is empty")
    return secret


def tls_context(options: Options) -> ssl.SSLContext:
    """Raises BadSetting."""
    files = [getattr(options, name) for name in ("tls_ca", "tls_cert", "tls_key")]
    return _context(options, tuple(map(_stamp, files)))


def server_name(options: Options, node: str) -> str | None:
    """Whose certificate ``node`` must have; None for a Unix socket whose certificate nobody looks at."""
    if options.tls_server_name or node.startswith("/"):
        return options.tls_server_name or None
    return split_address(node)[0].partition("%")[0]


def refusal(peer: str, error: ssl.SSLError) -> TlsFailed:
    """``error`` of a handshake with ``peer``, as ``nsqd host:port``, in a sentence that names the option."""
    words = getattr(error, "verify_message", "") or (error.reason or str(error.args[-1])).replace("_", " ").lower()
    if isinstance(error, ssl.SSLCertVerificationError):
        fix = "tls_server_name= says which name it has" if "mismatch" in words else "tls_ca= names a file of those to trust"
        return TlsFailed(f"{peer} shows a certificate that is not trusted: {words}; {fix}")
    fix = ""
    if "certificate" in words or "unknown ca" in words:
        fix = "; it wants a client certificate that it trusts: tls_cert=, tls_key="
    elif words == "wrong version number":
        fix = "; what answers there does not speak TLS"
    elif error.reason and ("version" in words or "protocol" in words):
        fix = "; tls_min_version= and nsqd's --tls-min-version say which are taken"
    return TlsFailed(f"no TLS with {peer}: {words}{fix}")


def _stamp(file: str) -> float:
    try:
        return os.stat(file).st_mtime_ns if file else 0
    except OSError:
        return -1  # loading it says what is wrong


@lru_cache(8)  # loading the system's certificates takes tens of milliseconds
def _context(options: Options, stamps: tuple[float, ...]) -> ssl.SSLContext:
    context: ssl.SSLContext = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _OLDEST[options.tls_min_version]
    if options.tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif options.tls_ca:
        _load("tls_ca", options.tls_ca, lambda: context.load_verify_locations(options.tls_ca))
    else:
        context.load_default_certs()
    if options.tls_cert:
        key = options.tls_key or options.tls_cert
        # an empty passphrase, or OpenSSL would ask for one on the terminal
        _load("tls_cert", f"{options.tls_cert}, {key}", lambda: context.load_cert_chain(options.tls_cert, key, password=""))
    return context


def _load(option: str, files: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError) as error:
        why = (isinstance(error, ssl.SSLError) and error.reason) or getattr(error, "strerror", None) or str(error)
        raise BadSetting(
            f"{option} in a broker URL: {files} cannot be used: {why}; give PEM files, the key without a passphrase"
        ) from None
