"""The sessions of a peer: whose is what comes to an inbox here, and who is to know that another server leads.

Their inboxes are below one word of the peer's, so that servers are told of them once. Source: as of ``session``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any, Protocol

import gevent
from gevent.hub import get_hub
from msgspec.structs import replace

from framework.errors import BrokerUnreachable, NegotiationRefused
from framework.message import Message
from framework.transports.nats import wire
from framework.transports.nats.commands import OfPeers
from framework.transports.nats.outbox import Owner
from framework.transports.nats.route_wire import Routed
from framework.transports.nats.streams import version_of
from framework.transports.nats_route import judgement
from framework.transports.nats_route.interest import Interests
from framework.transports.nats_route.members import is_peer
from framework.transports.nats_route.route import Route
from framework.transports.nats_route.session import RouteSession

_LOOK = 0.02  # seconds
Heard = Callable[[list[Routed], float], None]


class Peering(Protocol):
    """The peer, as its sessions use it."""

    node: str
    interests: Interests[Route]

    @property
    def routes(self) -> Collection[Route]: ...

    @property
    def max_payload(self) -> int: ...

    def reach(self, timeout: float) -> None: ...

    def wants_to_turn(self, member: Any) -> None: ...

    def send(self, subject: bytes, block: bytes, body: bytes, reply: bytes = b"") -> object: ...

    def rescue(self, now: float, expired: Collection[Message]) -> None: ...

    def rescued(self) -> None: ...


class Sessions:
    """``session.Routes``. Lives on the peer's hub."""

    def __init__(self, peer: Peering, account: bytes, system: bytes) -> None:
        self.node = peer.node
        self.account = account
        self.system = OfPeers(system)
        self._systems: set[str] = set()
        """Accounts in which something takes such requests."""
        self.rescuable = peer
        self._peer = peer
        self._root = b"_INBOX." + secrets.token_hex(11).encode()
        self._number = 0
        self._open: dict[RouteSession, None] = {}
        self._pulling: dict[bytes, list[RouteSession]] = {}
        """The subject at which a consumer is asked -> who asks there."""
        self._heard: dict[bytes, Heard] = {}
        self._info: wire.Info | None = None
        self._loop: Any = get_hub().loop

    # --- what the peer says --------------------------------------------------------------------------------

    def lines(self) -> bytes:
        """What servers are told to send here; nothing before there was a session. Each pull adds its own, which ends with it."""
        if not self._number:
            return b""
        return self.system.sub(self._root + b".>") + OfPeers(self.account).sub(self._root + b".acks.>")

    def takes_requests(self, account: bytes) -> None:
        """Servers do, in the system account; and whoever may subscribe to these subjects of another one."""
        self._systems.add(account.decode(errors="replace"))

    def explained(self, question: Callable[[], wire.Msg]) -> wire.Msg:
        """Its answer. Where there is none, why, if that shows: whoever may subscribe as servers do could else have it."""
        try:
            return question()
        except BrokerUnreachable as error:
            if (given := self.system.account.decode()) in self._systems or not self._systems:
                raise
            others = " or ".join(sorted(self._systems))
            words = f"the system account of these servers is not {given}: say system_account={others} in the broker URL"
            raise BrokerUnreachable(f"{error}; {words}") from None

    def listener(self, subject: bytes) -> Heard | None:
        """Who hears what comes to ``subject``."""
        return self._heard.get(subject.rpartition(b".")[0])

    def changed(self, subject: bytes) -> None:
        """Another server wants it, or wants it no more."""
        for session in self._pulling.get(subject, ()):
            session.follow()

    def joined(self, route: Route) -> None:
        self._info = None
        if not is_peer(route.info):
            for session in list(self._open):
                session.joined(route)

    def left(self, error: Exception) -> None:
        """A route has ended, and what it wanted is forgotten."""
        self._info = None
        for session in list(self._open):
            if self.servers:
                session.follow()
            else:
                session.end(error)

    def end(self) -> None:
        for session in list(self._open):
            session.end(BrokerUnreachable(f"the peer of {self.node} was closed"))

    def rescue(self, now: float, expired: Collection[Message]) -> None:
        """In another native thread."""
        for session in list(self._open):
            session.rescue(now, expired)

    def resumed(self) -> None:
        for session in list(self._open):
            session.resumed()

    def reach(self, timeout: float) -> None:
        """Have a route to a server that may answer: peers like us keep no streams. Blocks. Raises as ``Mesh.reach``, and
        NegotiationRefused."""
        until = monotonic() + timeout
        self._peer.reach(timeout)
        while not self.servers:
            if monotonic() >= until:
                raise BrokerUnreachable(f"no nats-server of {self.node} took us within {timeout:g} s")
            gevent.sleep(_LOOK)
        if words := judgement.unheard(self.info):
            raise NegotiationRefused("permissions", "", fix=words)

    # --- session.Routes ------------------------------------------------------------------------------------

    @property
    def servers(self) -> list[Route]:
        return [route for route in self._peer.routes if not is_peer(route.info)]

    @property
    def info(self) -> wire.Info:
        """Of the oldest server: each may be the one that is asked."""
        if self._info is None:
            infos = [route.info for route in self.servers]
            oldest = min(infos, key=version_of, default=wire.Info())
            self._info = replace(oldest, max_payload=self._peer.max_payload)
        return self._info

    def leader(self, subject: bytes) -> Route | None:
        """The last to say so: one that was cut off may not know yet that it leads no more."""
        found = self._peer.interests.exactly(subject)
        return found[-1] if found else None

    def takers(self, subject: bytes) -> Collection[Route]:
        return self._peer.interests.wanted(subject).plain

    def publish_once(self, subject: bytes, body: bytes, reply: bytes, headers: bytes) -> None:
        self._peer.send(subject, headers, body, reply)

    def wants_to_turn(self, session: RouteSession) -> None:
        self._peer.wants_to_turn(session)

    def call_soon(self, work: Callable[..., None], *args: object) -> None:
        """From any native thread."""
        self._loop.run_callback_threadsafe(work, *args)

    def enlist(self, session: RouteSession) -> bytes:
        self._number += 1
        self._open[session] = None
        self._pulling.setdefault(session.consumer, []).append(session)
        inbox = b"%b.%d" % (self._root, self._number)
        self._heard[inbox] = session.heard
        if self._number == 1:
            for route in self._peer.routes:
                route.say(self.lines())
        return inbox

    def strike(self, session: RouteSession) -> None:
        self._open.pop(session, None)
        others = [one for one in self._pulling.pop(session.consumer, ()) if one is not session]
        if others:
            self._pulling[session.consumer] = others
        for inbox in (session.inbox, session.acks):
            self._heard.pop(inbox, None)

    def listen(self, inbox: bytes, session: RouteSession, owner: Owner) -> None:
        def heard(messages: list[Routed], at: float) -> None:
            owner.heard([wire.Msg(one.subject, 0, b"", one.headers, one.body) for one in messages], at)

        self._heard[inbox] = heard
