"""Whether a topic has a channel already. NSQ gives all that waits in a topic to the first channel that comes, so a
look through a channel that is thrown away afterwards must not be the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framework.errors import BrokerError, FrameworkError, WrongUse
from framework.transports.nsq.http import Lookupd, Nsqd
from framework.transports.nsq.urls import join_address, read, split_address


def require_one(urls: Sequence[str], topic: str, http_addresses: Sequence[str]) -> None:
    """Raises WrongUse when ``topic`` has no channel, and when no server's HTTP API can tell.

    ``http_addresses``: where the nsqds answer HTTP; none given: on the port after the one for clients, nsqd's default.
    """
    answers = []
    silent = []
    for server in _servers(urls, http_addresses):
        try:
            answers.append(_channels(server, topic))
        except FrameworkError as error:
            silent.append(str(error))
    if any(answers):
        return
    if silent:
        raise WrongUse(
            f"it cannot be told whether topic {topic!r} has a channel ({silent[0]}): give nsqd's HTTP address with "
            "--http-address, or the channel to read with --channel"
        )
    raise WrongUse(
        f"topic {topic!r} has no channel yet: the first one gets all that waits there, and a tail's is thrown away; "
        "start its handlers first, or name a channel to keep with --channel"
    )


def _servers(urls: Sequence[str], http_addresses: Sequence[str]) -> Iterator[Nsqd | Lookupd]:
    addresses = read(urls)
    yield from map(Lookupd, addresses.lookupds)
    yield from map(Nsqd, http_addresses or map(_next_port, addresses.nsqds))


def _next_port(address: str) -> str:
    host, port = split_address(address)
    return join_address(host, port + 1)


def _channels(server: Nsqd | Lookupd, topic: str) -> list[str]:
    if isinstance(server, Lookupd):
        return server.lookup(topic).channels
    try:
        return [channel.channel_name for one in server.stats(topic, clients=False).topics or [] for channel in one.channels]
    except BrokerError as error:
        if "NOT_FOUND" in error.code:
            return []
        raise
