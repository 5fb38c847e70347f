"""A bare gevent loop on one socket: what Python can do at most. No runtime, no handler, no reconnecting, errors end it."""

import struct
import sys
import time

from gevent import socket

job, address, *topic = sys.argv[1:]
host, port = address.split(":")
BODY = b"x" * 200
TOPIC = topic[0].encode() if topic else b"bench#ephemeral"
_HEAD = struct.Struct(">ii")
_OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


def consume() -> None:
    """Every FIN of one recv in one send."""
    sock = _subscribed(2500)
    data = b""
    while True:
        data += sock.recv(1 << 16)
        at, answers = 0, []
        while len(data) - at >= 8:
            size, kind = _HEAD.unpack_from(data, at)
            if len(data) - at - 4 < size:
                break
            answers.append(b"FIN %b\n" % data[at + 18 : at + 34] if kind == 2 else b"NOP\n")
            at += size + 4
        data = data[at:]
        if answers:
            sock.sendall(b"".join(answers))


def latency() -> None:
    """One message at a time, so one whole frame at a time."""
    sock = _subscribed(1)
    while True:
        frame = sock.recv(1 << 16)
        if _HEAD.unpack_from(frame)[1] == 2:
            print((time.time_ns() - int(frame[34:])) / 1e6)
            sock.sendall(b"FIN %b\n" % frame[18:34])
        else:
            sock.sendall(b"NOP\n")


def _subscribed(ready: int) -> socket.socket:
    sock = _connected()
    _ask(sock, b"SUB bench bench\n")
    sock.sendall(b"RDY %d\n" % ready)
    return sock


def sync() -> None:
    sock = _connected()
    command = _pub()
    while True:
        _ask(sock, command)


def pipelined() -> None:
    sock = _connected()
    command, waiting, data = _pub(), 0, b""
    while True:
        if waiting <= 50:
            sock.sendall(command * (100 - waiting))
            waiting = 100
        data += sock.recv(1 << 16)
        whole = len(data) // len(_OK)
        _check(data[: whole * len(_OK)])
        data = data[whole * len(_OK) :]
        waiting -= whole


def mpub() -> None:
    sock = _connected()
    body = struct.pack(">i", 500) + (struct.pack(">i", len(BODY)) + BODY) * 500
    command = b"MPUB %b\n" % TOPIC + struct.pack(">i", len(body)) + body
    while True:
        _ask(sock, command)


def _pub() -> bytes:
    return b"PUB %b\n" % TOPIC + struct.pack(">i", len(BODY)) + BODY


def _connected() -> socket.socket:
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"  V2")
    return sock


def _ask(sock: socket.socket, command: bytes) -> None:
    sock.sendall(command)
    answer = b""
    while len(answer) < len(_OK):
        answer += sock.recv(1 << 16)
    _check(answer)


def _check(answers: bytes) -> None:
    if answers.replace(_OK, b""):  # a heartbeat would be one: no run takes so long
        raise RuntimeError(f"nsqd answered {answers[:200]!r}")


globals()[job]()
