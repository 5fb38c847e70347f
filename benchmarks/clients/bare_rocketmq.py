"""A bare socket to a RocketMQ broker: what comes is acknowledged without a look into it. No runtime, no handler, no routes."""

import itertools
import json
import socket
import struct
import sys
import time

BODY = b"x" * 200
ID = b"0" * 32
"""In the place of one."""
UNIQ_KEY = f"UNIQ_KEY\x01{ID.decode()}\x02"
job, address, topic = sys.argv[1:]
host, port = address.split(":")
sock = socket.create_connection((host, int(port)))
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
GROUP = "bare" if job == "latency" else "bench"
"""Where latencies are measured, another client gets the same messages in its own."""
LEASE = "60000"
POP = {
    "consumerGroup": GROUP, "topic": topic, "queueId": "-1", "maxMsgNums": "32", "invisibleTime": LEASE, "pollTime": "2000",
    "bornTime": "0", "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
}  # fmt: skip
SEND = {
    "a": GROUP, "b": topic, "c": "", "d": "4", "e": "-1", "f": "0", "g": "0", "h": "0", "i": "WAIT\x01true\x02", "j": "0",
    "k": "false", "m": "false",
}  # fmt: skip


def frame(code: int, fields: dict[str, str], body: bytes = b"", opaque: int = 0) -> bytes:
    header = json.dumps({"code": code, "language": "PYTHON", "version": 479, "opaque": opaque, "flag": 0, "extFields": fields})
    data = header.encode()
    return struct.pack(">ii", 4 + len(data) + len(body), len(data)) + data + body


def answers():
    """Header and size of the body of each answer, as they come; those of one read together."""
    data = b""
    while True:
        data += sock.recv(1 << 18)
        at, found = 0, []
        while at + 8 <= len(data):
            length, size = struct.unpack_from(">ii", data, at)
            if at + 4 + length > len(data):
                break
            found.append((json.loads(data[at + 8 : at + 8 + size]), data[at + 8 + size : at + 4 + length]))
            at += 4 + length
        data = data[at:]
        if found:
            yield found


def pop() -> None:
    """Eight POPs under way, with which it is faster than with four; all of one answer are acknowledged together."""
    ask = frame(200050, POP, opaque=1)
    sock.sendall(ask * 8)
    for found in answers():
        out = []
        for header, _ in found:
            if header["opaque"] != 1:
                continue
            out.append(ask)
            if header["code"] == 0:
                out.append(frame(200151, {}, acks(header["extFields"])))
        sock.sendall(b"".join(out))


def acks(said: dict[str, str]) -> bytes:
    import base64

    starts = {tuple(each.split(" ")[:2]): int(each.split(" ")[2]) for each in said["startOffsetInfo"].split(";") if each}
    entries = []
    for each in said["msgOffsetInfo"].split(";"):
        if not each:
            continue
        retry, queue, offsets = each.split(" ")
        start = starts[retry, queue]
        bits = 0
        for offset in offsets.split(","):
            bits |= 1 << (int(offset) - start)
        places = base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()
        entries.append({"c": GROUP, "t": topic, "r": retry, "so": start, "q": int(queue), "rq": int(said["reviveQid"]),
                        "pt": int(said["popTime"]), "it": int(said["invisibleTime"]), "b": places})  # fmt: skip
    return json.dumps({"brokerName": "broker-a", "acks": entries}).encode()


def pull() -> None:
    """One PULL for each of four queues under way; its offset is committed by the next one."""
    offsets = dict.fromkeys(range(4), 0)
    sock.sendall(b"".join(map(_pull, offsets, offsets.values())))
    for found in answers():
        out = []
        for header, _ in found:
            queue = header["opaque"]
            offsets[queue] = int(header["extFields"]["nextBeginOffset"])
            out.append(_pull(queue, offsets[queue]))
        sock.sendall(b"".join(out))


def _pull(queue: int, offset: int) -> bytes:
    fields = {
        "consumerGroup": f"{topic}|bench", "topic": topic, "queueId": str(queue), "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": "7", "commitOffset": str(offset), "suspendTimeoutMillis": "2000", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    return frame(11, fields, opaque=queue)


def one() -> None:
    _send(_single(), 1)


def many() -> None:
    _send(_single(), 64)


def batch() -> None:
    given = struct.pack(">h", len(UNIQ_KEY)) + UNIQ_KEY.encode()
    message = struct.pack(">iiiii", 20 + len(BODY) + len(given), 0, 0, 0, len(BODY)) + BODY + given
    _send(frame(320, {**SEND, "m": "true"}, message * 100), 1)


def _single() -> bytes:
    return frame(310, {**SEND, "i": SEND["i"] + UNIQ_KEY}, BODY)


def _send(command: bytes, window: int) -> None:
    """Half of the window is sent anew when half of it is answered. Each message has an id, as those of any client: a broker
    makes an entry for each in its index."""
    first, *others = command.split(ID)
    numbers = itertools.count()

    def commands(count: int) -> bytes:
        out = []
        for _ in range(count):
            out.append(first)
            for other in others:
                out += (b"%032X" % next(numbers), other)
        return b"".join(out)

    sock.sendall(commands(window))
    free = 0
    for found in answers():
        for header, _ in found:
            if header["code"]:
                raise RuntimeError(header)
        free += len(found)
        if free >= (window + 1) // 2:
            sock.sendall(commands(free))
            free = 0


def latency() -> None:
    """One POP at a time of up to 32."""
    ask = frame(200050, POP, opaque=1)
    sock.sendall(ask)
    for found in answers():
        for header, body in found:
            if header["opaque"] != 1:
                continue
            now = time.time_ns()
            out = [ask]
            if header["code"] == 0:
                out.append(frame(200151, {}, acks(header["extFields"])))
                at = 0
                while at < len(body):
                    (size,) = struct.unpack_from(">i", body, at)
                    (length,) = struct.unpack_from(">i", body, at + 84)
                    print((now - int(body[at + 88 : at + 88 + length])) / 1e6)
                    at += size
            sock.sendall(b"".join(out))


def pace() -> None:
    """Publishes the time, 500 times a second."""
    time.sleep(3)  # the consumer subscribes meanwhile
    due = time.monotonic()
    taken = answers()
    while True:
        sock.sendall(frame(310, {**SEND, "i": ""}, b"%d" % time.time_ns()))
        next(taken)
        due += 1 / 500
        time.sleep(max(0.0, due - time.monotonic()))


globals()[job]()
