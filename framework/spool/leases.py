"""Leases of the messages that are landed, as far as a spool can tell."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framework.message import Batch, Origin


def lease_of(connection: Origin) -> float:
    """Seconds; 0 where it is not known, as in a slot process, and where there is none, as by RocketMQ's PULL."""
    limits = getattr(connection, "limits", None)
    return float(limits.lease) if limits is not None and math.isfinite(limits.lease) else 0.0


def over(batch: Batch) -> int:
    """Of how many messages the lease is over, as far as that is known here: in a slot process the time of a call is known alone.
    One that was settled has none."""
    now, connections = time.monotonic(), {id(one.connection): one.connection for one in batch}
    leases = {number: lease_of(one) for number, one in connections.items()}
    count = 0
    for message in batch:
        connection = message.connection
        if lease := leases[id(connection)]:
            began = connection.in_flight.get(message)
            count += began is None or now - began >= lease
        else:
            count += message.seconds_left < 0
    return count
