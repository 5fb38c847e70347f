"""Dials a name server or a broker: a non-blocking socket for a session on the hub, with TLS over it where that is asked for.

A server of RocketMQ says nothing of itself when it is dialled. It blocks its greenlet.
"""

from __future__ import annotations

import _socket
import socket
import ssl

import gevent
from gevent import socket as gsocket

from framework.errors import BrokerUnreachable, cannot_be_reached
from framework.transports.addresses import split_address
from framework.transports.rocketmq import tls
from framework.transports.rocketmq.urls import Secrets
from framework.transports.stream import Socket, Tls, shake_hands

CONNECT_TIMEOUT = 5.0
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


def dial(server: str, secrets: Secrets | None = None, timeout: float = CONNECT_TIMEOUT) -> Socket:
    """A socket to ``server``, which the caller closes; ``secrets``: with TLS. ``timeout``: seconds for all of it.

    Raises BrokerUnreachable (refused, unknown host, silent), TlsFailed, BadSetting."""
    limit = gevent.Timeout(timeout)
    sock: Socket | None = None
    try:
        with limit:
            sock = _connected(server)
            return sock if secrets is None else _with_tls(sock, server, secrets)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, gevent.Timeout) and error is limit:
            raise BrokerUnreachable(f"RocketMQ at {server} did not answer within {timeout:.3g} s") from None
        if isinstance(error, ssl.SSLError):
            raise tls.refusal(server, error) from error
        if isinstance(error, OSError | ValueError):  # ValueError: a name server named no address, or one that IDNA refuses
            raise cannot_be_reached(f"RocketMQ at {server}", error) from error
        raise


def _connected(server: str) -> Socket:
    """Non-blocking, out of gevent's hands."""
    sock = gsocket.create_connection(split_address(server))
    for level, option, value in _KEEPALIVE:
        sock.setsockopt(level, option, value)
    bare = _socket.socket(fileno=sock.detach())
    bare.setblocking(False)
    return bare


def _with_tls(sock: Socket, server: str, secrets: Secrets) -> Socket:
    host = split_address(server)[0].partition("%")[0]
    return shake_hands(sock, Tls(tls.context(secrets), host), f"RocketMQ at {server}")
