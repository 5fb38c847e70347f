"""The peers of a transport, one for each cluster: on the hub of a worker, or on threads of their own for whoever publishes."""

from __future__ import annotations

from functools import partial

from gevent import monkey

from framework.forked import forget_in_child
from framework.transports.nats_route import urls
from framework.transports.nats_route.home import Home
from framework.transports.nats_route.peer import Peer
from framework.transports.nats_route.publishes import CONNECT_TIMEOUT
from framework.transports.nats_route.urls import Cluster

_new_lock = monkey.get_original("_thread", "RLock")


class Homes:
    """Safe to share between native threads."""

    def __init__(self, addresses: urls.Addresses) -> None:
        self.clusters = addresses.clusters
        self._options = addresses.options
        self._secrets = addresses.secrets
        self._made: dict[str, Home] = {}
        self._lock = _new_lock()
        forget_in_child(self)

    def start(self) -> None:
        """The peers live on this hub from now on. One that has published before lived elsewhere, and ends."""
        self.close()
        for cluster in self.clusters.values():
            self._home(cluster, own_thread=False)

    def close(self) -> None:
        with self._lock:
            homes, self._made = self._made, {}
        for home in homes.values():
            home.close()

    def forget(self) -> bool:
        """In a forked child: the peers are the parent's, and it makes others when it needs them; whether there were any."""
        homes, self._made, self._lock = self._made, {}, _new_lock()
        return bool(homes)

    def _home(self, cluster: Cluster, *, own_thread: bool) -> Home:
        with self._lock:
            if (home := self._made.get(cluster.node)) is None:
                make = partial(Peer, cluster, self._options, self._secrets)
                home = self._made[cluster.node] = Home(make, own_thread=own_thread)
            return home

    def there(self) -> list[Home]:
        """Those that were made."""
        with self._lock:
            return list(self._made.values())

    def anywhere(self, node: str) -> Home:
        """The one that there is; else another, on a thread of its own."""
        return self._home(self.clusters[node], own_thread=True)

    def all(self) -> list[Home]:
        """As ``anywhere``, of each cluster."""
        return [self.anywhere(node) for node in self.clusters]

    def here(self, node: str) -> Home:
        """On this hub, with a route. Raises BrokerUnreachable, AccessDenied, NegotiationRefused."""
        home = self._home(self.clusters[node], own_thread=False)
        if not home.here:  # it published before anything was subscribed to
            self.start()
            home = self._home(self.clusters[node], own_thread=False)
        home.peer.reach(CONNECT_TIMEOUT)
        return home
