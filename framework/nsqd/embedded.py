"""The embedded nsqd of a data folder: found where it runs already, else started as a child process. No server code here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from framework.errors import BrokerUnreachable
from framework.nsqd.users import Users

RUNNING = "nsqd.json"
"""In the data folder while an nsqd runs on it: its process id and addresses."""
LOG = "nsqd.log"
"""In the data folder: what an nsqd that was started from here has to say, warnings and worse."""
_START_SECONDS = 15.0
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.01
_CONNECT_SECONDS = 1.0
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104


class EmbeddedNsqd:
    """An nsqd on a data folder. ``process`` is None when another process started it."""

    users: Users | None = None
    """While it is used through here: what keeps an nsqd that a worker started from ending."""

    def __init__(self, tcp_address: str, http_address: str, pid: int, process: subprocess.Popen[bytes] | None = None) -> None:
        self.tcp_address = tcp_address
        self.http_address = http_address
        self.pid = pid
        self.process = process

    @property
    def url(self) -> str:
        """For ``--broker``: ``nsq://127.0.0.1:4150``; with its HTTP port, where that is not the next one."""
        tcp_port, http_port = (int(address.rpartition(":")[2]) for address in (self.tcp_address, self.http_address))
        return f"nsq://{self.tcp_address}" + (f"?http_port={http_port}" if http_port != tcp_port + 1 else "")

    @property
    def ended(self) -> bool:
        """Whether its process has gone, killed or not."""
        if self.process is not None:
            return self.process.poll() is not None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def stop(self) -> None:
        """Use it no more. The last user of one that a worker started ends it; the worker that started it waits for that."""
        if self.users is None:
            return
        if self.users.alone() and self.process is not None:
            _end(self.process)
        self.users.leave()
        self.users = self.process = None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def find(data_path: Path) -> str | None:
    """The URL of the nsqd that runs on this folder; None when there is none."""
    found = _running(data_path)
    return found.url if found else None


def ensure(
    data_path: Path, *, tcp_address: str = "127.0.0.1:4150", http_address: str = "127.0.0.1:4151"
) -> EmbeddedNsqd:  # fmt: skip
    """The nsqd on this folder, started with these addresses (port 0: any free one) if there is none yet.

    One that is started here lives until its last user has called ``stop`` or ended, killed or not.
    Raises BrokerUnreachable with nsqd's own words when it cannot start.
    """
    data_path.mkdir(mode=0o700, parents=True, exist_ok=True)
    users = Users(data_path)
    try:
        if not users.join(_STOP_SECONDS):
            raise BrokerUnreachable(f"the nsqd on {data_path} is ending, and does not come to its end")
        found = _running(data_path) or _start(data_path, tcp_address, http_address)
    except BaseException:
        users.leave()
        raise
    found.users = users
    return found


def obstacles(data_path: Path, *, tcp_address: str, http_address: str) -> list[str]:
    """What would keep ``ensure`` from starting one, a sentence each. Nothing is made or started."""
    found = []
    here = data_path.absolute()
    folder = next(path for path in (here, *here.parents) if path.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        found.append(f"--data-path {data_path} cannot be used: {folder} is not a folder to write in; name one that is yours")
    for flag, address in (("--nsqd-tcp-address", tcp_address), ("--nsqd-http-address", http_address)):
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host.strip("[]"), int(port)), family=family).close()
        except OSError as error:
            found.append(f"{flag}: cannot listen on {address}: {error.strerror}; name another address")
    return found


def _start(data_path: Path, tcp_address: str, http_address: str) -> EmbeddedNsqd:
    command = [
        sys.executable, "-m", "framework.nsqd", f"--data-path={data_path}", "--log-level=warn", "--while-used",
        f"--tcp-address={tcp_address}", f"--http-address={http_address}",
    ]  # fmt: skip
    with open(data_path / LOG, "ab", opener=_private) as log:
        start = log.tell()
        # A session of its own: Ctrl-C reaches a terminal's whole group, and this one must outlive the workers.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
        )  # fmt: skip
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        ended = process.poll() is not None
        found = _running(data_path)
        if found is not None and found.pid == process.pid:
            return EmbeddedNsqd(found.tcp_address, found.http_address, found.pid, process)
        if found is not None and ended:
            return found  # somebody else was quicker
        if ended and not _someone_is_starting(data_path, start):
            break
        time.sleep(_POLL_SECONDS)
    process.kill()
    process.wait()
    raise BrokerUnreachable(_last_words(data_path, start) or f"the embedded nsqd on {data_path} did not start")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _someone_is_starting(data_path: Path, start: int) -> bool:
    return "in use by another nsqd" in _last_words(data_path, start)


def _last_words(data_path: Path, start: int) -> str:
    with (data_path / LOG).open("rb") as log:
        log.seek(start)
        lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _running(data_path: Path) -> EmbeddedNsqd | None:
    try:
        said = json.loads((data_path / RUNNING).read_text())
        os.kill(said["pid"], 0)
        tcp, http = _reachable(said["tcp_address"]), _reachable(said["http_address"])
        host, _, port = tcp.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
            return EmbeddedNsqd(tcp, http, int(said["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # none, or one that was killed and left its file


def _reachable(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{_ANYWHERE.get(host.strip('[]'), host)}:{port}"
