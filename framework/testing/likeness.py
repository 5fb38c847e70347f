"""Says what a broker would refuse, without one: so that a test on the broker in memory fails where production would.

The real transport says it, opened for a URL and never connected: its capabilities and the names that it takes. Sizes and leases
are those of its URL, or the defaults of the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from framework.errors import WrongUse, shown
from framework.transports import open_transports
from framework.transports.contract import Capabilities, Limits
from framework.transports.memory.broker import LIMITS, MAX_SIZE


@dataclass(frozen=True, slots=True)
class Likeness:
    """What ``MemoryBroker`` takes on of another broker."""

    capabilities: Capabilities
    accept: Callable[[str, Collection[str]], None]
    limits: Limits
    max_size: int


def likeness(of: str) -> Likeness:
    """Of a scheme, ``nsq``, or a broker URL with its options, ``nsq://host?max_req_timeout=30m``. Raises WrongUse, BadSetting."""
    url = of if "://" in of else f"{of}://localhost"
    scheme = url.partition("://")[0]
    if scheme == "memory":
        raise WrongUse(f"like={shown(of)}: name the broker that the handlers are for, as like='nsq'")
    [transport] = open_transports([url])
    limits, max_size = _measures(scheme, url)
    return Likeness(transport.capabilities, transport.accept, limits, max_size)


def _measures(scheme: str, url: str) -> tuple[Limits, int]:
    if scheme.startswith("nsq"):
        from framework.transports.nsq import urls as nsq  # noqa: PLC0415

        nsqd: Any = nsq.read([url]).options
        return Limits(nsqd.msg_timeout or LIMITS.lease, LIMITS.max_lease, max_grant=2500), nsqd.max_msg_size
    if scheme == "beanstalkd":
        from framework.transports.beanstalkd import urls as beanstalkd  # noqa: PLC0415

        server: Any = beanstalkd.read([url]).options
        return Limits(float(server.ttr), math.inf, LIMITS.max_grant), server.max_job_size
    if scheme in ("nats", "nats+tls", "tls"):
        from framework.transports.nats import outgoing  # noqa: PLC0415
        from framework.transports.nats import urls as nats  # noqa: PLC0415

        jetstream: Any = nats.read([url]).options
        return Limits(jetstream.ack_wait, math.inf, LIMITS.max_grant), jetstream.max_payload - outgoing.OVERHEAD
    if scheme == "nats-route":
        from framework.transports.nats_route import urls as route  # noqa: PLC0415

        options: Any = route.read([url]).options
        return (Limits(options.streams.ack_wait, math.inf, LIMITS.max_grant) if options.jetstream else LIMITS), MAX_SIZE
    return LIMITS, MAX_SIZE
