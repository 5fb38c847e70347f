"""Leases of the messages that are landed, as far as a spool can tell."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from framework.message import Message, Origin


def lease_of(connection: Origin) -> float:
    """Seconds; 0 where it is not known, as in a slot process, and where there is none, as by RocketMQ's PULL."""
    limits = getattr(connection, "limits", None)
    return float(limits.lease) if limits is not None and math.isfinite(limits.lease) else 0.0


def is_over(message: Message) -> bool:
    """Whether its lease is, as far as that is known here: in a slot process the time of its call is known alone."""
    lease = lease_of(message.connection)
    if not lease:
        return message.seconds_left < 0
    began = message.connection.in_flight.get(message)
    return began is None or time.monotonic() - began >= lease
