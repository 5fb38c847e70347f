"""An nsqd's broker on a folder: what it says that it has, what it gives, and that nothing is left then."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import gevent

from framework.nsqd.broker import Broker
from framework.nsqd.channel import Channel
from framework.nsqd.options import parse
from framework.nsqd.store import Store


class Taker:
    """A client that is given up to ``ready`` messages, and finishes them when it is told to."""

    sample_rate = 0

    def __init__(self, channel: Channel, ready: int = 1000) -> None:
        self.channel = channel
        self.ready = ready
        self.leases = channel.new_leases(60)
        self.bodies: list[bytes] = []
        self._got: list[bytes] = []
        channel.subscribe(self)

    def room(self) -> int:
        return self.ready - len(self.leases.messages)

    def send(self, frames: list[bytes], count: int) -> None:
        self._got += frames[1::3]
        self.bodies += frames[2::3]

    def sampled(self) -> bool:
        return True

    def close(self, reason: str) -> None: ...

    def finish(self) -> None:
        got, self._got = self._got, []
        for message_id in got:
            assert self.channel.finish(self, message_id) is None


class Run(NamedTuple):
    """What one start of an nsqd on the folder gave."""

    depths: int
    """What it said at the start that it has, once for each channel, or for the topic that has none."""
    served: dict[str, list[bytes]]
    """By channel. What is deferred counts as served, once its body was read."""
    reports: list[str]

    @property
    def lost(self) -> int:
        """What it said is lost."""
        return sum(int(one) for report in self.reports for one in re.findall(r"(\d+) messages lost", report))

    @property
    def bodies(self) -> set[bytes]:
        return {body for each in self.served.values() for body in each}


def run(folder: Path, *, leave: bool = False) -> Run:
    """Start an nsqd's broker on the folder, take everything from it, and stop it. ``leave``: only look at the start."""
    lines: list[str] = []
    broker = Broker(Store(folder), parse([f"--data-path={folder}"]), lambda level, words: lines.append(f"{level} {words}"))
    try:
        with gevent.Timeout(30):
            channels = [one for topic in broker.topics.values() for one in topic.channels.values()]
            depths = sum(one.depth + len(one.deferred) for one in channels)
            depths += sum(topic.depth for topic in broker.topics.values())
            served = {} if leave else take(broker)
    finally:
        broker.stop()
    assert not [line for line in lines if line.startswith("ERROR")]
    return Run(depths, served, [line for line in lines if "DISK" in line])


def take(broker: Broker) -> dict[str, list[bytes]]:
    """All bodies by channel, all finished; a topic without one gets one. Nothing is left then, and the counts say so."""
    for topic in broker.topics.values():
        if not topic.channels:
            topic.channel("late")
            topic.settle()
    takers = [Taker(one) for topic in broker.topics.values() for one in topic.channels.values()]
    for one in takers:
        one.channel.serve()
    while any(one.channel.depth or one.channel.in_flight_count for one in takers):
        for one in takers:
            one.finish()
        gevent.sleep(0.001)
    for one in takers:
        seqs = [entry[2].seq for entry in one.channel.deferred]
        found = broker.bodies(one.channel.topic.id, seqs, 1 << 30) if seqs else {}
        one.bodies += [each[1] for each in found.values() if each]
        assert len(one.channel.deferred) == sum(each is not None for each in found.values())
        one.channel.empty()
        assert one.channel.depth == one.channel.in_flight_count == one.channel.topic.depth == 0
    return {one.channel.topic.name + "/" + one.channel.name: sorted(one.bodies) for one in takers}
