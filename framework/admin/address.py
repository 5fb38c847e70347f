"""Where the admin endpoint listens: host:port, or a Unix socket. Opened before the worker starts, so that it is refused then."""

from __future__ import annotations

import _socket
import ipaddress
import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from framework.errors import BadSetting
from framework.forked import forget_in_child, let_go
from framework.transports.addresses import split_address

_BACKLOG = 64


@dataclass(eq=False)
class Listener:
    """``fd`` listens at ``address``, which is ``host:port`` or the path of a socket. ``loopback``: nobody else can reach it."""

    fd: int
    address: str
    loopback: bool
    path: str = ""
    made: tuple[int, int] | None = None
    """Which file that is."""

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.fd)
        with suppress(OSError):
            if self.path and _identity(self.path) == self.made:  # else it was removed, and may be another worker's by now
                os.unlink(self.path)

    def forget(self) -> None:
        """In a forked child: the port is the parent's."""
        let_go(self.fd)


def listen(where: str) -> Listener:
    """Raises BadSetting, in one sentence, for what cannot be listened at."""
    try:
        made = _listen_on_path(where) if "/" in where else _listen_on_port(where)
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise BadSetting(f"--admin {where} cannot be listened at: {words}; give another port, or a path") from None
    forget_in_child(made)
    return made


def _listen_on_port(where: str) -> Listener:
    host, port = split_address(where)
    family, _, _, _, address = _socket.getaddrinfo(host, port, type=_socket.SOCK_STREAM)[0]
    made = _socket.socket(family, _socket.SOCK_STREAM)
    try:
        made.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
        bound = made.getsockname()
        shown = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        return Listener(made.detach(), shown, ipaddress.ip_address(bound[0].partition("%")[0]).is_loopback)
    finally:
        made.close()


def _listen_on_path(where: str) -> Listener:
    made = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        _remove_stale(where)
        made.bind(where)
        os.chmod(where, 0o600)
        made.listen(_BACKLOG)
        return Listener(made.detach(), where, loopback=True, path=where, made=_identity(where))
    finally:
        made.close()


def _remove_stale(path: str) -> None:
    """The socket of a worker that was killed; not one that is served, and nothing that is no socket."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        probe = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        probe.setblocking(False)  # a worker that hangs has nobody to take it
        try:
            probe.connect(path)
        except BlockingIOError:
            return
        except ConnectionRefusedError:
            os.unlink(path)
        finally:
            probe.close()


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
