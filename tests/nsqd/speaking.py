"""Commands as bytes, and what a client got: for tests that speak to an nsqd by hand."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from typing import Any

Talks = Callable[..., Any]


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def pub(topic: str, *bodies: bytes) -> bytes:
    return b"".join(f"PUB {topic}\n".encode() + sized(body) for body in bodies)


def mpub(topic: str, *bodies: bytes) -> bytes:
    content = struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))
    return f"MPUB {topic}\n".encode() + sized(content)


def identify(**fields: Any) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(fields).encode())


def fin(*ids: bytes) -> bytes:
    return b"".join(b"FIN " + one + b"\n" for one in ids)


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def bodies(client: Any) -> list[bytes]:
    return [body for _, _, body in client.messages]


def bodies_of(messages: list[tuple[bytes, int, bytes]]) -> list[bytes]:
    return [body for _, _, body in messages]
