"""Publishes the time to nsqd, so many times a second, over a bare socket; to several nsqds in turns, each round in another
order. Nagle's algorithm is off."""

import random
import socket
import struct
import sys
import time

rate, addresses = sys.argv[1:]
pause = 1 / float(rate)
socks = [socket.create_connection((host, int(port))) for host, port in (one.split(":") for one in addresses.split(","))]
for sock in socks:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"  V2")
time.sleep(2)  # the consumer subscribes meanwhile
due = time.monotonic()
while True:
    for sock in random.sample(socks, len(socks)):
        body = b"%d" % time.time_ns()
        sock.sendall(b"PUB bench\n" + struct.pack(">i", len(body)) + body)
        sock.recv(1 << 16)
        due += pause
        time.sleep(max(0.0, due - time.monotonic()))
