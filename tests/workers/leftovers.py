"""A log that has everything in it, and what an interrupted run of the demo left in the channels of a broker."""

from __future__ import annotations

import gzip
import os
import zlib
from typing import Any

from framework import Publisher

CHANNELS = ("archive", "growth", "spam")

MIXED = [
    *(
        f'10.0.0.{n % 50} - - [12/May/2024:{n // 60:02}:{n % 60:02}:00 +0000] "GET /page/{n % 9} HTTP/1.1" 200 5\r'.encode()
        for n in range(600)
    ),
    *(f'66.0.0.1 - - [13/May/2024:01:00:{n:02} +0000] "GET /{n}/.env HTTP/1.1" 404 5'.encode() for n in range(30)),
    b'10.0.0.1 - - [13/May/2024:01:00:00 +0000] "GET /caf\xe9 HTTP/1.1" 200 5',
    b"not \xff a line",
    b'<b>"half',
    b"",
    b"",
    b"x" * 1_100_000,
]


def half_a_gzip() -> bytes:
    """MIXED, and a part of a line that comes after it."""
    return gzip.compress(b"\n".join(MIXED) + b"\n" + os.urandom(4000).hex().encode() + b"\n")[:-1500]


def readable_part(packed: bytes) -> list[bytes]:
    """The whole lines of a gzip that ends early."""
    return zlib.decompressobj(wbits=31).decompress(packed).split(b"\n")[:-1]


def left_on_nsqd(nsqd: Any) -> str:
    """Forty lines in each channel; returns the broker's URL."""
    nsqd.http("/topic/create?topic=api_requests", b"")
    for channel in CHANNELS:
        nsqd.http(f"/channel/create?topic=api_requests&channel={channel}", b"")
    nsqd.http("/mpub?topic=api_requests", b"\n".join(b"left over %d" % n for n in range(40)))
    return f"nsq://{nsqd.address}"


def left_on_beanstalkd(beanstalkd: Any) -> str:
    """Forty lines in each channel's tube; returns the broker's URL, which says nothing of the copies."""
    url = f"beanstalkd://{beanstalkd.address}"
    publisher = Publisher(f"{url}?fanout={','.join(f'api_requests/{channel}' for channel in CHANNELS)}")
    publisher.publish_many("api_requests", [f"left over {n}" for n in range(40)])
    publisher.close()
    return url


LEFTOVERS = {"nsqd": left_on_nsqd, "beanstalkd": left_on_beanstalkd}
