"""A bare socket to a nats-server: what comes in one read is acknowledged in one send. No runtime, no handler, no reconnecting."""

import re
import socket
import sys

BODY = b"x" * 200
BATCH, DEPTH, WINDOW = 1250, 2500, 500
job, address = sys.argv[1:]
host, port = address.split(":")
_MSG = re.compile(rb"MSG [^ ]+ 1 ([^ ]+) (\d+)\r\n")
_PULL = b'{"batch":%d,"expires":30000000000}' % BATCH
_NEXT = b"PUB $JS.API.CONSUMER.MSG.NEXT.bench.bench _INBOX.me.1 %d\r\n%b\r\n" % (len(_PULL), _PULL)


def pull() -> None:
    """A pull for each 1,250 messages that have come, so that there are about 2,500 to come."""
    sock = _connected()
    sock.sendall(b"SUB _INBOX.me.1 1\r\n" + _NEXT * (DEPTH // BATCH))
    data, came = b"", 0
    while True:
        data += sock.recv(1 << 18)
        at, replies = 0, []
        while found := _MSG.match(data, at):
            end = found.end() + int(found[2]) + 2
            if end > len(data):
                break
            replies.append(found[1])
            at = end
        if not found and data.startswith(b"PING\r\n", at):
            sock.sendall(b"PONG\r\n")
            at += 6
        elif not found and data.startswith(b"HMSG", at):  # nothing more is there
            return
        data = data[at:]
        came += len(replies)
        pulls, came = divmod(came, BATCH)
        sock.sendall(b"".join([b"PUB %b 4\r\n+ACK\r\n" % reply for reply in replies]) + _NEXT * pulls)


def store() -> None:
    """Half of the window is sent anew when half of it is answered."""
    sock = _connected()
    command = b"PUB bench _INBOX.me.1 %d\r\n%b\r\n" % (len(BODY), BODY)
    sock.sendall(b"SUB _INBOX.me.1 1\r\n")
    data, waiting = b"", 0
    while True:
        if waiting <= WINDOW // 2:
            sock.sendall(command * (WINDOW - waiting))
            waiting = WINDOW
        data += sock.recv(1 << 18)
        whole = data.rfind(b"}\r\n") + 3
        if b"error" in data:
            raise RuntimeError(f"nats-server answered {data[:200]!r}")
        waiting -= data.count(b"}\r\n", 0, whole)
        data = data[whole:] if whole > 2 else data


def _connected() -> socket.socket:
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n')
    answers = b""
    while b"PONG\r\n" not in answers:
        answers += sock.recv(1 << 16)
    return sock


globals()[job]()
