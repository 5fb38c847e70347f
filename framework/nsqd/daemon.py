"""What nsqd and nsqlookupd have in common as processes: listening, lines on stderr, signals, exit codes. No protocol."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar

import gevent
from gevent import socket

from framework import version
from framework.errors import FrameworkError
from framework.nsqd import goflags, memory
from framework.nsqd.goflags import LEVELS, BadFlag, CommonOptions, Flag
from framework.nsqd.options import VERSION
from framework.observe import stderr

BACKLOG = 1024
HANDSHAKE_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
"""How long an HTTP client may take for a request, from when it could begin until it has read the answer."""
Options = TypeVar("Options", bound=CommonOptions)


class Daemon(Protocol):
    def run(self) -> None:
        """Serve until ``stop``."""

    def stop(self) -> None:
        """May be called from a signal handler."""


def version_line(program: str) -> str:
    """As ``nsqd --version`` prints it; tools match its beginning."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{program} v{VERSION} (built w/nsq-workers-{version.VERSION}-python-{python})"


class Log:
    """Lines on stderr, as NSQ's daemons write them; ``main`` sees to it that nobody waits for that."""

    def __init__(self, options: CommonOptions) -> None:
        self._options = options

    def __call__(self, level: str, words: str) -> None:
        if LEVELS.index(level) >= LEVELS.index(self._options.log_level):
            stamp = datetime.now().strftime("%Y/%m/%d %H:%M:%S.%f")
            sys.stderr.write(f"{self._options.log_prefix}{stamp} {level}: {words}\n")


def listen(address: str) -> socket.socket:
    """A listener on ``host:port`` (without a host, on every address) or on a path. Raises BadFlag, OSError in a sentence."""
    bound = bind(address)
    bound.listen(BACKLOG)
    return bound


def bind(address: str) -> socket.socket:
    """Likewise, and no client can connect yet."""
    if "/" in address:
        return _bind_at(address, socket.socket(socket.AF_UNIX), address)
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadFlag(f"address {address!r} is not <host>:<port>")
    host = host.removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", int(port), type=socket.SOCK_STREAM)  # noqa: S104
    except socket.gaierror as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}; name another address") from error
    family, kind, number, _, where = found[0]
    listener = socket.socket(family, kind, number)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return _bind_at(address, listener, where)


def _bind_at(address: str, listener: socket.socket, where: Any) -> socket.socket:
    try:
        listener.bind(where)
    except OSError as error:
        listener.close()
        words = f"cannot listen on {address}: {os.strerror(error.errno or errno.EINVAL)}; name another address"
        raise OSError(error.errno, words) from error
    return listener


def port(listener: socket.socket) -> int:
    """The port that is listened on; 0 for a path."""
    return 0 if listener.family == socket.AF_UNIX else int(listener.getsockname()[1])


def send_at_once(sock: socket.socket) -> None:
    """Wait for no more bytes to send with the first."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def forget(listener: socket.socket) -> None:
    """Remove the path that was listened on, if it was one."""
    if listener.family == socket.AF_UNIX:
        os.unlink(listener.getsockname())


def joined(address: tuple[Any, ...] | str) -> str:
    """A socket's address as ``host:port``, or its path (Go's @ for a client that has none)."""
    if isinstance(address, str):
        return address or "@"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def main(
    program: str,
    flags: Mapping[str, Flag],
    parse: Callable[[Sequence[str]], Options],
    make: Callable[[Options], Daemon],
    arguments: Sequence[str],
) -> int:
    """Run a daemon until SIGTERM or SIGINT; returns the exit code: 0, 1 (cannot start), 2 (wrong flag)."""
    with stderr.unblocked(f"[{program}] "):
        return _run(program, flags, parse, make, arguments)


def _run(
    program: str,
    flags: Mapping[str, Flag],
    parse: Callable[[Sequence[str]], Options],
    make: Callable[[Options], Daemon],
    arguments: Sequence[str],
) -> int:
    _allow_connections()
    try:
        options = parse(arguments)
        if options.help or options.version:
            sys.stdout.write(f"{goflags.usage(program, flags) if options.help else version_line(program)}\n")
            return 0
        daemon = make(options)
    except BadFlag as error:
        return _refuse(program, f"{error} (--help lists the flags)", 2)
    except FrameworkError as error:
        return _refuse(program, str(error), 1)
    except OSError as error:
        words = error.strerror or str(error)
        return _refuse(program, f"{error.filename}: {words}" if error.filename else words, 1)
    memory.keep_small()
    gevent.signal_handler(signal.SIGTERM, daemon.stop)
    gevent.signal_handler(signal.SIGINT, daemon.stop)
    daemon.run()
    return 0


def _allow_connections() -> None:
    """As many open files as the system lets us have: shells give 1,024, and each client is one. Go does the same."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _refuse(program: str, words: str, code: int) -> int:
    sys.stderr.write(f"{program}: {words}\n")
    return code
