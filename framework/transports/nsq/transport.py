"""NSQ as a ``contract.Transport``: which nsqds there are, and connections and producers to them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from framework.errors import BrokerUnreachable
from framework.transports.asking_all import all_admitted, answered, ask_each
from framework.transports.contract import Capabilities, NodeInfo, Producer, Receiver, Transport
from framework.transports.enveloped import SealingProducer
from framework.transports.kept import Kept
from framework.transports.nsq import channels, credentials
from framework.transports.nsq import urls as _urls
from framework.transports.nsq.backlog import Backlog
from framework.transports.nsq.connection import NsqConnection, connect
from framework.transports.nsq.delays import MAX_DEFER, LongestDelays
from framework.transports.nsq.dial import dial
from framework.transports.nsq.discovery import Discovery
from framework.transports.nsq.http import Nsqd
from framework.transports.nsq.producer import NsqProducer
from framework.transports.recent import Recent


def open(urls: Sequence[str]) -> Transport:
    """A transport over all of ``urls`` (``nsq://``, ``nsq+lookupd://``, …). Raises BadSetting; connects to nothing."""
    addresses = _urls.read(urls)
    credentials.check(addresses.options)
    return NsqTransport(addresses)


class NsqTransport:
    """One or more nsqds, named directly, through nsqlookupds, or both."""

    capabilities = Capabilities(
        touch=True, attempts=True, fan_out=True, max_requeue=MAX_DEFER, max_defer=MAX_DEFER,
        longer_lease="start nsqd with a longer --max-msg-timeout", longer_delay="start nsqd with a longer --max-req-timeout",
        with_headers="add headers=true to the broker URL, here and at their readers",
    )  # fmt: skip

    def __init__(self, addresses: _urls.Addresses) -> None:
        self._addresses = addresses
        self._direct = set(addresses.nsqds)
        self._discovery = Discovery(addresses.lookupds, addresses.options)
        self._backlog = Backlog(addresses, self._discovery)
        self._options = addresses.options
        self.capabilities = replace(self.capabilities, discovers=bool(addresses.lookupds), headers=self._options.headers)
        self._delays = LongestDelays(addresses.options, self._know_delays)
        self._described = Recent(self._describe)
        self._know_delays()

    def _know_delays(self) -> None:
        self.capabilities = replace(self.capabilities, max_requeue=self._delays.longest, max_defer=self._delays.longest)

    def start(self, hub: object) -> None:
        """Nothing is shared: each connection has its own socket."""

    def close(self) -> None: ...

    def accept(self, topic: str, channels: Collection[str]) -> None:
        """Any: the names of this framework are NSQ's."""

    def describe(self, topic: str = "", channel: str = "") -> list[NodeInfo]:
        """The same for every topic and channel: each nsqd is asked once for all that ask within a moment."""
        return self._described()

    def discover(self, topic: str, channel: str = "") -> set[str]:
        """The nsqds named directly, and those that hold ``topic`` by any nsqlookupd."""
        try:
            return self._direct | self._discovery.lookup(topic)
        except BrokerUnreachable:
            if not self._direct:
                raise
            return self._direct | self._discovery.known(topic)

    def channels(self, topic: str) -> set[str]:
        """By HTTP: of every nsqlookupd, and of the nsqds named directly."""
        return channels.of_topic(topic, self._addresses)

    def topics(self) -> set[str]:
        """By HTTP, of every nsqd."""
        return self._backlog.topics()

    def backlog(self, topic: str, channel: str) -> dict[str, int]:
        """By HTTP, of every nsqd that has ``topic``."""
        return self._backlog.of_channel(topic, channel)

    def kept(self, topic: str, channel: str) -> dict[str, Kept]:
        """By HTTP, of every nsqd that has ``topic``."""
        return self._backlog.kept(topic, channel)

    def pause(self, topic: str, channel: str, *, paused: bool) -> set[str]:
        """By HTTP, on every nsqd. It outlives nsqd."""
        return self._backlog.pause(topic, channel, paused=paused)

    def clock_of(self, node: str) -> float:
        """By HTTP. Raises BrokerUnreachable, ProtocolError."""
        at = self._discovery.http_of(node)
        nsqd = Nsqd(at, options=self._options) if at else Nsqd.of(node, self._options)
        return nsqd.clock() + 1.0

    def ensure(self, topic: str, channels: Collection[str]) -> None:
        """By HTTP: a publish by TCP makes the topic alone, and what is in it then is for the channels that come first."""
        self._backlog.ensure(topic, channels)

    def connect(self, node: str, topic: str, channel: str, receiver: Receiver) -> NsqConnection:
        max_defer = self._delays.of(node, self._discovery.http_of(node))
        return connect(node, topic, channel, receiver, self._options, max_defer=max_defer)

    def producer(self) -> Producer:
        made = NsqProducer(self.nodes, self._options, delays=self._delays)
        return SealingProducer(made) if self._options.headers else made

    def nodes(self) -> set[str]:
        """Every nsqd there is, whatever its topics; while no nsqlookupd answers, those that any has named. Raises
        BrokerUnreachable as ``discover`` does, where there are none of these either."""
        try:
            return self._direct | self._discovery.nodes()
        except BrokerUnreachable:
            known = self._direct | self._discovery.everywhere()
            if not known:
                raise
            return known

    def probe(self) -> list[NodeInfo]:
        nodes = sorted(self.nodes())
        if not nodes:
            raise BrokerUnreachable("the nsqlookupds know of no nsqd yet: start one with --lookupd-tcp-address")
        return list(all_admitted(ask_each(nodes, self._probe)).values())

    def _describe(self) -> list[NodeInfo]:
        try:
            nodes = self.nodes()
        except BrokerUnreachable:
            return []
        return list(answered(ask_each(sorted(nodes), self._probe)).values())

    def _probe(self, node: str) -> NodeInfo:
        with dial(node, self._options) as line:
            line.check_admitted()
            longest = self._delays.of(node, self._discovery.http_of(node))
            can = replace(self.capabilities, max_requeue=longest, max_defer=longest)
            return NodeInfo(node, f"nsqd {line.identity.version}", line.identity.limits(longest), can)
