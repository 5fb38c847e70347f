"""What JetStream is reached by from a peer: requests to every server, pulls and settlements to the one that leads the consumer.

The server that leads a consumer subscribes to the subjects at which that is asked and told, so it is found by what servers want.
What is said while nobody leads waits here. Administration goes by way of the system account, in which servers take requests of
other servers. Source: nats-server's jetstream_api.go (Nats-Request-Info) and consumer.go; what 2.9 and 2.15 were seen to do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from functools import partial
from time import monotonic
from typing import Any, Protocol

import msgspec
from gevent.hub import get_hub

from framework.errors import BrokerUnreachable
from framework.message import Message
from framework.transports.contract import Rescuable
from framework.transports.nats import wire
from framework.transports.nats.commands import OfPeers
from framework.transports.nats.outbox import Owner, Said
from framework.transports.nats.question import TIMEOUT, ask
from framework.transports.nats.route_wire import Routed
from framework.transports.nats.streams import NO_LEADER
from framework.transports.nats_route.route import Route

NOBODY = b"NATS/1.0 503\r\n\r\n"
"""What a server tells a client of a publish that nobody takes."""
AGAIN = 1.0
"""Seconds after which a request that nobody has answered is said again: a cluster may be without a leader for a moment."""
ELECTION = 15.0
"""Seconds that an answer may take. Servers of which all were started again elect a leader after 4 to 9 s, and later where votes
are split (5 to 10 s were seen, and 14 by a client); until then nobody answers."""
_NO_LEADER = b'"err_code":%d' % NO_LEADER
DESERTED = 10.0
"""Seconds without a server that leads, after which it is looked whether there is a consumer at all."""


class Routes(Protocol):
    """The peer, as its sessions use it."""

    node: str
    account: bytes
    system: OfPeers

    @property
    def servers(self) -> list[Route]:
        """Routes to servers, without peers like us."""

    @property
    def info(self) -> wire.Info: ...

    @property
    def rescuable(self) -> Rescuable: ...

    def explained(self, question: Callable[[], wire.Msg]) -> wire.Msg: ...

    def leader(self, subject: bytes) -> Route | None: ...

    def takers(self, subject: bytes) -> Collection[Route]:
        """Whose servers want each message of ``subject``."""

    def publish_once(self, subject: bytes, body: bytes, reply: bytes, headers: bytes) -> None: ...

    def wants_to_turn(self, session: RouteSession) -> None: ...

    def call_soon(self, work: Callable[..., None], *args: object) -> None:
        """In a turn of the hub of its own."""

    def enlist(self, session: RouteSession) -> bytes:
        """Its inbox: what comes one word below is its own."""

    def strike(self, session: RouteSession) -> None: ...

    def listen(self, inbox: bytes, session: RouteSession, owner: Owner) -> None: ...


class RouteSession:
    """``carrier.Carrier`` and ``carrier.Publishing`` of a peer. Lives on the peer's hub.

    ``consumer``: the subject at which it is asked for messages; empty for one that only asks and publishes."""

    leaving = relays = False

    def __init__(self, peer: Routes, consumer: bytes = b"") -> None:
        self.consumer = consumer
        self.commands = OfPeers(peer.account)
        self.error: Exception | None = None
        self._peer = peer
        self._owners: dict[int, Owner] = {}
        self._sids = itertools.count(1)
        self._dirty: dict[Owner, None] = {}
        self._asked: list[Callable[[], None]] = []
        self._proof = self._kept = False
        self._on_the_way: list[Said] = []
        self._requests: dict[int, bytes] = {}
        """Those that were not answered yet."""
        self._leader: Route | None = None
        self._alone_since = monotonic()
        self._proven = 0.0
        self._again: Any = get_hub().loop.timer(AGAIN, AGAIN)
        self.inbox = peer.enlist(self)
        root, _, number = self.inbox.rpartition(b".")
        self.acks = b"%b.acks.%b" % (root, number)
        self.follow()

    # --- who it is connected to ----------------------------------------------------------------------------

    @property
    def server(self) -> str:
        return self._leader.server if self._leader is not None else f"of {self._peer.node}"

    @property
    def info(self) -> wire.Info:
        return self._peer.info

    @property
    def rescuable(self) -> Rescuable:
        return self._peer.rescuable

    @property
    def proven(self) -> float:
        return max(self._proven, self._leader.proven) if self._leader is not None else self._proven

    @property
    def heeded(self) -> float:
        return self.proven

    def distrust(self, *, ends: bool) -> None:
        """A server that ends JetStream unsubscribes first: what is on its way is said again (``follow``)."""

    @property
    def heard_at(self) -> float:
        return max((route.heard_at for route in self._peer.servers), default=0.0)

    def deserted(self, now: float) -> bool:
        if self._leader is not None or now - self._alone_since < DESERTED:
            return False
        self._alone_since = now
        return True

    def follow(self) -> None:
        """Who wants what has changed: another server may lead."""
        if not self.consumer or self.error is not None:
            return
        leader, before = self._peer.leader(self.consumer), self._leader
        if leader is before:
            return
        self._leader = leader
        if leader is None:
            self._alone_since = monotonic()
        if before is not None:
            self._proven = max(self._proven, before.proven)
            self._say_again()
        for owner in self._each_owner():
            self._take_leave(before, owner)
        if leader is not None:
            for owner in self._each_owner():
                self.wants_to_speak(owner)

    def _say_again(self) -> None:
        """What is on its way goes to a server that drops it: one that stood still while another was elected reads it, and answers
        a PING, as if it led. The next is told."""
        unread, self._on_the_way = self._on_the_way, []
        for said in reversed(unread):  # each goes ahead of what is there
            said.lost()

    def _take_leave(self, route: Route | None, owner: Owner) -> None:
        last, then = owner.moved()
        if route is None:
            if then is not None:
                then()
            return
        if last:
            route.say(last)
        if then is not None:
            route.ping(lambda _: then())

    def joined(self, route: Route) -> None:
        """There is one more server, which may be the one that answers."""
        for request in self._requests.values():
            route.say(request)

    def _each_owner(self) -> list[Owner]:
        return list(dict.fromkeys(list(self._owners.values())))

    # --- asking and publishing -----------------------------------------------------------------------------

    @property
    def patience(self) -> float:
        """Where no server has JetStream at all, none is going to answer."""
        return ELECTION if any(route.info.jetstream for route in self._peer.servers) else TIMEOUT

    def ask(self, to: bytes, body: bytes, timeout: float) -> wire.Msg:
        """As ``carrier.Asking``."""
        return self._peer.explained(lambda: ask(self, to, body, timeout))

    def request(self, sid: int, to: bytes, body: bytes) -> None:
        """To every server: the one whose it is to answer does."""
        cluster = self.info.cluster  # where streams are placed
        who = msgspec.json.encode({"acc": self.commands.account.decode(), "rtt": 1000, "cluster": cluster})
        block = b"NATS/1.0\r\nNats-Request-Info: %b\r\n\r\n" % who
        self._requests[sid] = said = self._peer.system.pub(to, body, b"%b.%d" % (self.inbox, sid), headers=block)
        for route in self._peer.servers:
            route.say(said)
        if not self._again.active:
            self._again.start(self._ask_again)

    def _ask_again(self) -> None:
        """Who was to answer may have been found since. Nothing is made twice: names are the same."""
        for route in self._peer.servers:
            self.joined(route)
        if not self._requests:
            self._again.stop()

    def settles(self, answer: wire.Msg) -> bool:
        """A server that is cut off from the others says at once that nobody leads; the one that does is asked as well."""
        return _NO_LEADER not in answer.body

    def withdraw(self, sid: int) -> None:
        self._requests.pop(sid, None)
        self.drop(sid)

    def listen(self, inbox: bytes, owner: Owner) -> None:
        self._owners[0] = owner
        self._peer.listen(inbox, self, owner)

    def publish(self, to: bytes, body: bytes, reply: bytes, headers: bytes) -> Collection[Route]:
        went = list(self._peer.takers(to))
        if went:
            self._peer.publish_once(to, body, reply, headers)
        else:
            self._peer.call_soon(self._nobody_takes, reply)
        return went

    def _nobody_takes(self, reply: bytes) -> None:
        if self.error is None and (owner := self._owners.get(0)) is not None:
            owner.heard([wire.Msg(reply, 0, b"", NOBODY, b"")], monotonic())

    def astray(self, to: bytes, went: object) -> bool:
        assert isinstance(went, list)
        takers = self._peer.takers(to)
        return not any(route in takers for route in went)

    def poll(self) -> None:
        """The peer's hub reads."""

    # --- owners --------------------------------------------------------------------------------------------

    def sid(self, owner: Owner) -> int:
        sid = next(self._sids)
        self._owners[sid] = owner
        return sid

    def drop(self, sid: int) -> None:
        self._owners.pop(sid, None)

    def attend(self, owner: Owner, subjects: Collection[bytes]) -> None:
        """Deletions need not be told: the server that leads unsubscribes then, and ``moved`` follows."""
        self.sid(owner)

    @property
    def away(self) -> str:
        if self._leader is not None:
            return ""
        return str(self.error or f"no nats-server of {self._peer.node} leads what is asked at {self.consumer.decode()}")

    def doubt(self, limit: float) -> None:
        """A route says by itself when it is dead, and nothing is counted here that was not read."""

    def leave(self, owner: Owner) -> list[Said]:
        for sid in [sid for sid, one in self._owners.items() if one is owner]:
            del self._owners[sid]
            if self._leader is not None:
                self._leader.say(self.commands.unsub(b"%b.%d" % (self.inbox, sid)))
        self._dirty.pop(owner, None)
        mine = [said for said in self._on_the_way if said.owner is owner]
        self._on_the_way = [said for said in self._on_the_way if said.owner is not owner]
        return mine

    def wants_to_speak(self, owner: Owner) -> None:
        self._dirty[owner] = None
        self._peer.wants_to_turn(self)

    def ping(self, then: Callable[[], None] | None = None) -> None:
        if then is not None:
            self._asked.append(then)
        self._peer.wants_to_turn(self)

    def prove(self) -> None:
        self._proof = True

    # --- the turn of the hub -------------------------------------------------------------------------------

    def turn(self) -> None:
        """Say what owners have to say, to the server that leads; until one does it waits with them."""
        for owner in list(self._dirty):
            owner.turn()
        route = self._leader
        if route is None or self.error is not None:
            return
        dirty, self._dirty = self._dirty, {}
        said = [owner.collect() for owner in dirty]
        if data := b"".join(part for part, _ in said):
            route.say(data)
        marks = [mark for _, mark in said if mark is not None]
        asked, self._asked = self._asked, []
        if asked or self._proof or any(mark.acks or mark.naks for mark in marks):
            self._proof = False
            self._on_the_way += marks
            route.ping(partial(self._answered, marks, asked), proves=True)
        else:
            for mark in marks:
                mark.sent()

    def _answered(self, marks: list[Said], asked: list[Callable[[], None]], read: bool) -> None:
        """The server has read all that was said, or is gone."""
        for mark in marks:
            if mark in self._on_the_way:
                self._on_the_way.remove(mark)
                if read:
                    mark.sent()
                else:
                    mark.lost()
        for then in asked:
            then()

    def heard(self, messages: list[Routed], at: float) -> None:
        """What came in one read for any of its owners, in order."""
        batches: dict[Owner, list[wire.Msg]] = {}
        sid, inbox, batch = 0, b"", list[wire.Msg]()
        for one in messages:
            if one.subject != inbox:  # most come by the pull of the one before
                inbox = one.subject
                number = inbox.rpartition(b".")[2]
                sid = int(number) if number.isdigit() else -1  # of somebody else's who publishes there
                owner = self._owners.get(sid)
                batch = batches.setdefault(owner, []) if owner is not None else []
            batch.append(_as_to_a_client(one, sid))
        for owner, batch in batches.items():
            owner.heard(batch, at)

    # --- in the hub's place, from another native thread ----------------------------------------------------

    def rescue(self, now: float, expired: Collection[Message]) -> None:
        """Touch what is in flight, and what came meanwhile."""
        route = self._leader
        if route is None or self.error is not None:
            return
        mine = [one for one in route.stashed if type(one) is Routed and one.subject.rpartition(b".")[0] == self.inbox]
        for owner in self._each_owner():
            heard = [_as_to_a_client(one, 0) for one in mine]
            data, mark = owner.keep(heard, now, expired)
            self._kept = True
            if data:
                marks = [mark] if mark is not None else []
                self._on_the_way += marks
                route.say_in_its_place(data, now, partial(self._answered, marks, []))

    def rescued(self) -> None:
        self._peer.rescuable.rescued()

    def resumed(self) -> None:
        if self._kept:
            self._kept = False
            for owner in self._each_owner():
                owner.resumed()

    # --- the end -------------------------------------------------------------------------------------------

    def close(self) -> None:
        self.end(BrokerUnreachable(f"the session of {self._peer.node} was closed"))

    def end(self, error: Exception) -> None:
        """Tell all who subscribe."""
        if self.error is None:
            self.error = error
            self._again.close()
            self._peer.strike(self)
            for owner in self._each_owner():
                owner.lost(error)
            self._owners.clear()

    def shut(self) -> None:
        """From another native thread."""
        if self.error is None:  # else its hub may be gone
            self._peer.call_soon(self.close)

    def fileno(self) -> int:
        """It has no socket of its own."""
        return -1


def _as_to_a_client(one: Routed, sid: int) -> wire.Msg:
    """On a route it comes to the inbox, and the subject that it was published to stands behind that of its answer."""
    return wire.Msg(one.subject, sid, one.reply.partition(b"@")[0], one.headers, one.body)
