"""Which servers of the cluster there are routes to: dials and listens, tells of servers and is told of them, keeps one to each.

As servers do it: whoever accepts a server tells the others of it, and whoever is told of one dials it. Of two routes to one
server the first stays. Source: the cluster protocol of the NATS documentation; nats-server's route.go.
"""

from __future__ import annotations

import random
import re
from collections import deque
from dataclasses import replace as copied
from time import monotonic
from typing import Any, Protocol

import gevent
from gevent.event import Event
from msgspec.structs import replace

from framework.errors import REFUSALS, BrokerUnreachable, FrameworkError, NegotiationRefused, words_of
from framework.observe import hublog
from framework.transports.addresses import join_address, split_address
from framework.transports.nats import wire
from framework.transports.nats.route_wire import Connect
from framework.transports.nats.urls import Secrets
from framework.transports.nats_route import line as lines
from framework.transports.nats_route.door import Door
from framework.transports.nats_route.line import Card, Line
from framework.transports.nats_route.members import is_peer, new_id, new_name, of_two, same_server
from framework.transports.nats_route.route import Owner, Route
from framework.transports.nats_route.tls import contexts
from framework.transports.nats_route.urls import Cluster, Options

log = hublog.get(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
"""Seconds between two dials of a server that is not there."""
_BRIEF = 1.0
"""Seconds that a route stands at most when a server takes it only to end it: one that does so again is dialled ever later."""
_TRIES = 8
"""Dials of a server that others told of, until it is forgotten."""
_JITTER = 0.1
"""Seconds, at most, before a dial anew: two servers that dialled one another at once would do so again."""
_PORT = re.compile("[0-9]{1,5}")
_HOLD = 1.0
"""Seconds for which whoever dials us waits, at most, until our own dials are decided: a peer like us gives up a little later."""
_GREETING = 0.02
"""Seconds within which a server that has dialled says who it is. A peer like us waits until we have."""
_NO_GOSSIP, _DO_GOSSIP = 1, 2
"""Whether a server that is told of is to be told, when it is dialled, not to tell others of whoever dials it."""
_IDS = 100
"""Ids of ours by which we know ourselves: an older one no server has any more."""
_MOST = 1000
"""Addresses that are dialled: a server that tells of more is mistaken."""


class User(Owner, Protocol):
    """Who sends and receives on the routes. Called on the hub."""

    def subscriptions(self) -> bytes:
        """What is subscribed to here, as RS+ lines."""

    def joined(self, route: Route) -> None:
        """There is one more; ``subscriptions`` may have been said on it before, as they were then."""

    def left(self, route: Route, error: Exception) -> None:
        """It has ended."""


class Mesh:
    """Of one cluster. Made on the hub that it lives on, and begun by ``open``."""

    def __init__(self, cluster: Cluster, options: Options, secrets: Secrets, user: User) -> None:
        self.routes: dict[str, Route] = {}
        """server_id -> the route to it."""
        self.changed = Event()
        """Set whenever a route comes or goes, or a dial has failed; whoever waits clears it."""
        self.cluster = options.cluster
        """Its name, as far as it is known."""
        self._dynamic = False
        self._seeds = cluster.servers
        self._login = cluster.login
        self._local = cluster.local
        self._options = options
        self._secrets = secrets
        self._user = user
        self._name = new_name()
        self._id = new_id()
        self._ids = deque([self._id], _IDS)
        self._keepers: dict[str, gevent.Greenlet] = {}
        self._seed_names: set[str] = set()
        """Servers that we were told to dial. Only to a route that we dialled do they tell the others of us, and us of them."""
        self._tried: dict[str, tuple[float, Exception]] = {}
        """Address -> when the last dial that failed was begun, and why it did."""
        self._meeting: dict[str, str] = {}
        """Seeds that are being dialled -> the server_id that each has told, or empty."""
        self._decided = Event()
        """Set while there are none of these."""
        self._decided.set()
        self._hurry = Event()
        self._door: Door | None = None
        self._closed = False

    @property
    def port(self) -> int:
        """Where it listens; 0: nowhere."""
        return self._place()[1]

    # --- what its user says --------------------------------------------------------------------------------

    def reach(self, timeout: float) -> None:
        """Have at least one route; blocks its greenlet.

        Raises BrokerUnreachable, and when every server refuses us what the first says: AccessDenied, NegotiationRefused."""
        began = monotonic()
        self._open()
        self._hurry.set()
        try:
            while not self.routes:
                self.changed.clear()
                errors = [error for at, error in map(self._last_try, self._seeds) if at >= began]
                if len(errors) == len(self._seeds):
                    raise self._why(errors)
                if not self.changed.wait(began + timeout - monotonic()) and monotonic() - began >= timeout:
                    raise self._too_late(timeout)
        finally:
            self._hurry.clear()

    def _last_try(self, seed: str) -> tuple[float, Exception]:
        return self._tried.get(seed, (0.0, BrokerUnreachable("")))

    def _too_late(self, timeout: float) -> Exception:
        """What the servers said when they were tried last says more than that nobody was tried since."""
        errors = [error for at, error in map(self._last_try, self._seeds) if at]
        if len(errors) == len(self._seeds):
            return BrokerUnreachable(str(self._why(errors)))
        return BrokerUnreachable(f"no nats-server of {', '.join(self._seeds)} took us within {timeout:g} s")

    def _why(self, errors: list[Exception]) -> Exception:
        if all(isinstance(error, REFUSALS) for error in errors) or len(errors) == 1:
            return errors[0]
        return BrokerUnreachable("; ".join(map(words_of, self._seeds, errors)))

    def _open(self) -> None:
        if self._door is None:
            self._door = Door(self._options.listen or ("127.0.0.1:0" if self._local else ""), self._admit)
        for seed in self._seeds:
            self._keep(seed)
        if self.cluster:
            self._door.open()

    def close(self) -> None:
        self._closed = True
        gevent.killall(list(self._keepers.values()), block=False)
        if self._door is not None:
            self._door.close()
        for route in list(self.routes.values()):
            route.close()

    # --- who we are ----------------------------------------------------------------------------------------

    def _card(self, *, gossip: bool) -> Card:
        host, port = split_address(self._options.advertise) if self._options.advertise else self._place()
        return Card(
            server_id=self._id, server_name=self._name, cluster=self.cluster, dynamic=self._dynamic, host=host, port=port,
            login=self._login, tls=bool(self._secrets.tls_cert), gossip=gossip and bool(port),
        )  # fmt: skip

    def _place(self) -> tuple[str, int]:
        return self._door.address if self._door is not None else ("127.0.0.1", 0)

    def _renew(self) -> None:
        """A server that has not noticed the end of our last route takes no other with the same id, and says nothing of it."""
        self._id = new_id()
        self._ids.append(self._id)

    def _learn(self, info: wire.Info, server: str) -> None:
        """The cluster's name; may block. Raises NegotiationRefused for another one than was asked for, or than that of servers
        that we have routes to: what one says of others would be told to all."""
        lines.check_name(info, self._options.cluster, server)
        for other in list(self.routes.values()):
            if is_peer(other.info) and not is_peer(info):
                continue  # it says what a server has told it, perhaps long ago
            if of_two(info, other.info) and of_two(info, self._asked(other)):
                whose = f"{server} is of cluster {info.cluster!r} and {other.server} of {other.info.cluster!r}"
                raise NegotiationRefused("cluster", "", fix=f"{whose}: give each cluster a broker URL of its own")
        self.cluster, self._dynamic = info.cluster, info.cluster_dynamic

    def _asked(self, route: Route) -> wire.Info:
        """What its server says of itself by now: a configuration that is loaded again may give its cluster another name."""
        try:
            with lines.dialled(route.server) as line:
                info = line.read_info(contexts(self._secrets).client)
        except FrameworkError:
            return route.info
        if info.server_name == route.info.server_name:
            route.info = replace(route.info, cluster=info.cluster, cluster_dynamic=info.cluster_dynamic)
        return route.info

    # --- dialling ------------------------------------------------------------------------------------------

    def _keep(self, address: str, *, gossip: bool = True) -> None:
        """Have a route to ``address`` from now on; where others have told of it, only as long as somebody is there.

        ``gossip``: it is to tell others of us."""
        if address not in self._keepers and not self._closed:
            self._keepers[address] = gevent.spawn(self._kept, address, gossip)

    def _kept(self, address: str, gossip: bool) -> None:
        told = address not in self._seeds
        failures, brief, left = 0, 0, False
        while not self._closed:
            began = monotonic()
            if not told:
                self._meet(address, "")
            try:
                route = self._dial(address, gossip=gossip)
            except FrameworkError as error:
                failures += 1
                self._tried[address] = began, error
                self.changed.set()
                loud = failures in (2, 20, 200) and self.routes and not (told and left)  # workers come and go
                (log.warning if loud else log.debug)("no route to nats-server %s: %s", address, error)
                if told and failures >= _TRIES:
                    break
                self._hurry.wait(_pause(failures))
                gevent.sleep(_JITTER * random.random())
                continue
            finally:
                self._met(address)
            if route is None:  # it is ourselves
                break
            failures, joined = 0, monotonic()
            self._tried.pop(address, None)
            route.over.wait()
            left = True
            brief = brief + 1 if monotonic() - joined < _BRIEF else 0
            if brief > 1:
                self._hurry.wait(_pause(brief))
            if not told:
                self._meet(address, "")
            gevent.sleep(_JITTER * random.random())
        self._keepers.pop(address, None)
        self._tried.pop(address, None)

    def _dial(self, address: str, *, gossip: bool) -> Route | None:
        """A route to the server at ``address``, which may be one that there is; None: it is ourselves."""
        return lines.persistent(lambda: self._dial_once(address, gossip=gossip), self._renew)

    def _dial_once(self, address: str, *, gossip: bool) -> Route | None:
        with lines.dialled(address) as line:
            info = line.read_info(contexts(self._secrets).client)
            if info.server_id in self._ids:
                return None
            if address in self._seeds and not is_peer(info):
                self._seed_names.add(info.server_name)
                self._meet(address, info.server_id)
            if (known := self._known(info)) is not None:
                return known
            self._check_twins(info, address)
            self._learn(info, address)
            line.introduce(self._card(gossip=gossip), self._user.subscriptions())
            self._learn(info, address)  # it may be the second one of two that were dialled at a time
            if (known := self._known(info)) is not None and not self._gives_way(known, info, dialled=True):
                return known  # it has dialled us meanwhile
            if self._door is not None:  # it is known whose cluster it is: whoever dials is told
                self._door.open()
            return self._join(line, dialled=True)

    def _known(self, info: wire.Info) -> Route | None:
        """The route that there is to this server. A peer like us may have another id by now, and never has another name."""
        if (route := self.routes.get(info.server_id)) is not None:
            return route
        mine = (route for route in self.routes.values() if is_peer(info))
        return next((route for route in mine if route.info.server_name == info.server_name), None)

    def _check_twins(self, info: wire.Info, address: str) -> None:
        """A server that was started again has its old name at its old address; at another one of the URL it is another server.
        Each would end the other's route. Raises NegotiationRefused."""
        for other in self.routes.values():
            if same_server(other.info, info) and other.server != address and {other.server, address} <= set(self._seeds):
                fix = f"{other.server} and {address} are both called {info.server_name}: give one of them another server_name"
                raise NegotiationRefused("server_name", info.server_name, fix=fix)

    # --- listening -----------------------------------------------------------------------------------------

    def _meet(self, seed: str, server_id: str) -> None:
        self._meeting[seed] = server_id
        self._decided.clear()

    def _met(self, seed: str) -> None:
        self._meeting.pop(seed, None)
        if not self._meeting:
            self._decided.set()

    def _admit(self, sock: Any, address: str) -> None:
        """A server that knows us by the connection that it has dialled closes the one that we have, and dials again whenever its
        own is closed: for as long as both went on neither was a route. So it is not told who we are while we dial it."""
        try:
            with lines.accepted(address, sock) as line:
                self._decided.wait(_HOLD)
                said = line.greeting(contexts(self._secrets).server, _GREETING)
                if said is not None and said.name and said.name in {*self.routes, *self._meeting.values()}:
                    return
                info = line.admit(self._answer(said), said)
                if self._takes_any_name:
                    self.cluster, self._dynamic = info.cluster, info.cluster_dynamic
                if info.server_id in self._ids or self._closed:
                    return
                if (known := self._known(info)) is not None and not self._gives_way(known, info, dialled=False):
                    return
                if info.server_name in self._seed_names:  # it misses the route that ended, and so do we: ours comes with gossip
                    return
                host = split_address(address)[0]
                line.server = join_address(host, info.port) if info.port else address
                self._tell(self._join(line, dialled=False), host)
        except FrameworkError as error:
            log.debug("a server that dialled from %s is not taken: %s", address, error)

    @property
    def _takes_any_name(self) -> bool:
        """The one that we know was made up by a server. Whoever dials us was told of us by one of its cluster, which may have
        another by now."""
        return self._dynamic and not self._options.cluster

    def _answer(self, said: Connect | None) -> Card:
        """Who we are, to whoever says that it is ``said``. A server would take the name that we know for its own, where it comes
        later in the alphabet than that, and leave all others."""
        card = self._card(gossip=False)
        if said is None or not said.cluster or not self._takes_any_name:
            return card
        return copied(card, cluster=said.cluster, dynamic=said.cluster_dynamic)

    # --- routes --------------------------------------------------------------------------------------------

    def _gives_way(self, known: Route, info: wire.Info, *, dialled: bool) -> bool:
        """Whether ``known`` has ended for a route that was made at the same time, and that we have ``dialled``, or else the peer.

        Of two peers that dial one another at once, the one of the lesser name has dialled the route that stays: each would end
        the other's, again and again. A server decides by itself."""
        if not is_peer(info) or known.dialled == dialled or (self._name < info.server_name) != dialled:
            return False
        known.end(BrokerUnreachable(f"peer {known.server} dialled us when we dialled it, and one route is enough"))
        return True

    def _join(self, line: Line, *, dialled: bool) -> Route:
        route = Route(line, self._user, self._options.ping_interval, dialled=dialled)
        for other in [one for one in self.routes.values() if same_server(one.info, route.info)]:
            other.end(BrokerUnreachable(f"nats-server {other.server} has come back"))
        self.routes[route.info.server_id] = route
        log.debug("a route to nats-server %s (%s)", route.server, route.info.server_name)
        self._user.joined(route)
        route.start()
        self.changed.set()
        return route

    def ended(self, route: Route, error: Exception) -> None:
        """``Owner.ended``, by way of its user."""
        if self.routes.get(route.info.server_id) is route:
            del self.routes[route.info.server_id]
            if not self._closed:
                log.debug("%s", error)
                self._renew()
            self._user.left(route, error)
            self.changed.set()

    # --- telling -------------------------------------------------------------------------------------------

    def _tell(self, route: Route, host: str) -> None:
        """The others of the server that has dialled us from ``host``. It is to tell of the servers of our URL; if it told of all
        who dial it then, each peer would hear of every other from it."""
        info = route.info
        if info.gossip_mode == _NO_GOSSIP or not info.port:
            return
        fields: dict[str, object] = {
            "server_id": info.server_id, "server_name": info.server_name, "version": info.version, "proto": info.proto,
            "host": info.host, "port": info.port, "headers": info.headers, "max_payload": info.max_payload,
            "cluster": info.cluster, "auth_required": info.auth_required, "tls_required": info.tls_required,
            "tls_verify": info.tls_verify, "ip": info.ip or f"nats-route://{join_address(host, info.port)}/",
        }  # fmt: skip
        for other in list(self.routes.values()):
            if other is not route:
                other.say(wire.info(fields | {"gossip_mode": _DO_GOSSIP if other.server in self._seeds else _NO_GOSSIP}))

    def told(self, route: Route, info: wire.Info) -> None:
        """INFO on a route: of its own server (it is about to end, say), or of another one, which is to be dialled."""
        if info.server_id == route.info.server_id:
            return
        if info.server_id in self._ids or self._known(info) is not None:
            return
        if (address := _dialable(info.ip)) and len(self._keepers) < _MOST:
            self._keep(address, gossip=info.gossip_mode != _NO_GOSSIP)


def _dialable(url: str) -> str:
    """``nats-route://10.0.0.7:6222/`` -> its address; empty for what is none."""
    host, _, port = url.removeprefix("nats-route://").rstrip("/").rpartition("@")[2].rpartition(":")
    return f"{host}:{port}" if host and _PORT.fullmatch(port) and 0 < int(port) < 65536 else ""


def _pause(failures: int) -> float:
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * float(2 ** min(failures - 1, 10)))
