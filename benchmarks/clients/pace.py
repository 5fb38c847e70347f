"""Publishes the time to nsqd, so many times a second, over a bare socket. Nagle's algorithm is off."""

import socket
import struct
import sys
import time

rate, address = sys.argv[1:]
host, port = address.split(":")
pause = 1 / int(rate)
with socket.create_connection((host, int(port))) as sock:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"  V2")
    time.sleep(2)  # the consumer subscribes meanwhile
    due = time.monotonic()
    while True:
        body = b"%d" % time.time_ns()
        sock.sendall(b"PUB bench\n" + struct.pack(">i", len(body)) + body)
        sock.recv(1 << 16)
        due += pause
        time.sleep(max(0.0, due - time.monotonic()))
