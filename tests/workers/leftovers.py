"""What an interrupted run of the demo left in the channels of a broker, for the tests of the next one."""

from __future__ import annotations

from typing import Any

from framework import Publisher

CHANNELS = ("archive", "growth", "spam")


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
