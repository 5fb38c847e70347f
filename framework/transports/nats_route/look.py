"""A look at a cluster, for ``workers check`` and for who asks what there is: a route to one of its servers, for a moment."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from framework.errors import REFUSALS, BrokerUnreachable, FrameworkError, words_of
from framework.transports.nats import wire
from framework.transports.nats.route_wire import Interest
from framework.transports.nats.urls import Secrets
from framework.transports.nats_route.line import Card, check_name, dialled, persistent
from framework.transports.nats_route.members import new_id, new_name
from framework.transports.nats_route.tls import contexts
from framework.transports.nats_route.urls import Cluster, Options


class Looked(NamedTuple):
    """What was seen."""

    info: wire.Info
    subscribed: set[tuple[bytes, bytes]]
    """Subjects and queue groups of the server's own clients."""


def look(cluster: Cluster, options: Options, secrets: Secrets) -> Looked:
    """At the first server that takes us. Raises what the servers answered, if none does."""
    failures: dict[str, FrameworkError] = {}
    for server in cluster.servers:
        try:
            return persistent(partial(_look_at, server, cluster, options, secrets))
        except FrameworkError as error:
            failures[server] = error
    if len(failures) == 1 or all(isinstance(error, REFUSALS) for error in failures.values()):
        raise next(iter(failures.values()))
    raise BrokerUnreachable("; ".join(map(words_of, failures, failures.values())))


def _look_at(server: str, cluster: Cluster, options: Options, secrets: Secrets) -> Looked:
    with dialled(server) as line:
        info = line.read_info(contexts(secrets).client)
        check_name(info, options.cluster, server)
        card = Card(
            new_id(), new_name(), info.cluster, info.cluster_dynamic, "127.0.0.1", 0, cluster.login, bool(secrets.tls_cert),
            gossip=False,
        )  # fmt: skip
        line.introduce(card, b"")
        account = options.account.encode()
        found = {(one.subject, one.queue) for one in line.events if isinstance(one, Interest) and one.account == account}
        return Looked(info, found)
