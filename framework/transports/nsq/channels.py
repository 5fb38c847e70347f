"""Which channels a topic has, by the HTTP APIs of its servers, because the TCP protocol of nsqd cannot say it. It changes
nothing."""

from __future__ import annotations

from collections.abc import Iterator

import gevent

from framework.errors import BrokerError, BrokerUnreachable, FrameworkError
from framework.transports.nsq.http import Lookupd, Nsqd
from framework.transports.nsq.urls import Addresses


def of_topic(topic: str, addresses: Addresses) -> set[str]:
    """The names, from all servers at once. Raises BrokerUnreachable when none is known and not every server answered."""
    asked = [gevent.spawn(_ask, server, topic) for server in _servers(addresses)]
    gevent.joinall(asked)
    answers = [one.get() for one in asked]
    found: set[str] = set().union(*(answer for answer in answers if not isinstance(answer, FrameworkError)))
    silent = [str(answer) for answer in answers if isinstance(answer, FrameworkError)]
    if silent and not found:
        raise BrokerUnreachable("; ".join(silent))
    return found


def _servers(addresses: Addresses) -> Iterator[Nsqd | Lookupd]:
    for address in addresses.lookupds:
        yield Lookupd.of(address, addresses.options)
    for node in addresses.nsqds:
        yield Nsqd.of(node, addresses.options)


def _ask(server: Nsqd | Lookupd, topic: str) -> set[str] | FrameworkError:
    try:
        if isinstance(server, Lookupd):
            return set(server.lookup(topic).channels)
        return {channel.channel_name for one in server.stats(topic, clients=False).topics or [] for channel in one.channels}
    except BrokerError as error:
        return set() if "NOT_FOUND" in error.code else error
    except FrameworkError as error:
        return error
