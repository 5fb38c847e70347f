"""A bare socket to beanstalkd: 100 reserves in one send, then 100 deletes in one. No runtime, no handler: the server's limit."""

import re
import socket
import sys

DEPTH = 100
job, address = sys.argv[1:]
host, port = address.split(":")
_RESERVED = re.compile(rb"RESERVED (\d+) (\d+)\r\n")


def reserve() -> None:
    with socket.create_connection((host, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _answers(sock, b"watch bench\r\nignore default\r\n", 2)
        while True:
            sock.sendall(b"reserve\r\n" * DEPTH)
            _answers(sock, b"".join(b"delete %b\r\n" % each for each in _reserved(sock)), DEPTH)


def _reserved(sock: socket.socket) -> list[bytes]:
    """The ids of the next ``DEPTH`` jobs."""
    ids: list[bytes] = []
    data, at = b"", 0
    while len(ids) < DEPTH:
        found = _RESERVED.match(data, at)
        end = found.end() + int(found[2]) + 2 if found else sys.maxsize
        if found and end <= len(data):
            ids.append(found[1])
            at = end
        else:
            data, at = data[at:] + sock.recv(1 << 18), 0
    return ids


def _answers(sock: socket.socket, commands: bytes, count: int) -> None:
    sock.sendall(commands)
    while count > 0:
        count -= sock.recv(1 << 18).count(b"\n")


globals()[job]()
