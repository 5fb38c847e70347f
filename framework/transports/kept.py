"""What the nodes of a broker keep for a channel, in as much detail as they tell, and the pause that they may have.

Beside the contract, because no engine needs it: for who looks at brokers, and for administrators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from framework.transports.contract import Transport


@dataclass(frozen=True, slots=True)
class Kept:
    """What a node keeps of a topic for one channel, by the node's own counters. None: it does not say."""

    waiting: int
    """Could be delivered now. All there is, where the node does not tell it from the rest."""
    in_flight: int = 0
    deferred: int = 0
    """Not to be delivered yet."""
    came: int | None = None
    """All that have come for the channel, since the node started."""
    consumers: int | None = None
    """Connections that are subscribed."""
    paused: bool = False
    """By its administrator: nothing is delivered."""

    @property
    def total(self) -> int:
        return self.waiting + self.in_flight + self.deferred


@runtime_checkable
class Inspectable(Protocol):
    """A transport whose nodes tell apart what they keep."""

    def kept(self, topic: str, channel: str) -> dict[str, Kept]:
        """As ``Transport.backlog``, which is its sum."""


@runtime_checkable
class Pausable(Protocol):
    """A transport whose nodes have a pause of their own: they deliver nothing, to whoever is subscribed."""

    def pause(self, topic: str, channel: str, *, paused: bool) -> set[str]:
        """Begin or end the pause of ``channel``, or of all of ``topic`` where it is empty; returns the nodes that have it.

        Blocks; never longer than a few seconds. Raises BrokerUnreachable when not every node could be told."""


def kept_of(transport: Transport, topic: str, channel: str) -> dict[str, Kept]:
    """Blocks; never longer than a few seconds. Raises BrokerUnreachable when not every node could be asked."""
    if isinstance(transport, Inspectable):
        return transport.kept(topic, channel)
    return {node: Kept(waiting=count) for node, count in transport.backlog(topic, channel).items()}


def together(nodes: dict[str, Kept]) -> Kept:
    """That of several nodes as of one. It is paused where each of them is."""
    all_ = list(nodes.values())
    came = [one.came for one in all_ if one.came is not None]
    consumers = [one.consumers for one in all_ if one.consumers is not None]
    return Kept(
        sum(one.waiting for one in all_), sum(one.in_flight for one in all_), sum(one.deferred for one in all_),
        sum(came) if came else None, sum(consumers) if consumers else None, bool(all_) and all(one.paused for one in all_),
    )  # fmt: skip
