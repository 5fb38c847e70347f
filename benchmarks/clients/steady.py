"""MPUBs of 500 bodies of 200 bytes, so many messages a second, on a bare socket: ``steady.py ADDRESS RATE``."""

import socket
import struct
import sys
import time

MANY = 500
address, rate = sys.argv[1:]
host, port = address.split(":")
pause = MANY / float(rate)
sock = socket.create_connection((host, int(port)))
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
sock.sendall(b"  V2")
body = struct.pack(">i", MANY) + (struct.pack(">i", 200) + b"x" * 200) * MANY
command = b"MPUB bench\n" + struct.pack(">i", len(body)) + body
due = time.monotonic()
while True:
    sock.sendall(command)
    if sock.recv(1 << 16)[8:10] != b"OK":
        raise RuntimeError("nsqd took no MPUB")
    due += pause
    time.sleep(max(0.0, due - time.monotonic()))
