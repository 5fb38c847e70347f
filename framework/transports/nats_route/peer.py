"""What a cluster takes for one more server: what is subscribed to here, what the others want, and messages both ways.

It lives on one hub. A message is sent once to each server that wants it, and names the queue groups of which a member there was
drawn; servers hand nothing on to one another, so there is a route to each of them (``mesh``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Any, Protocol

from gevent.event import Event
from gevent.hub import get_hub

from framework.errors import PublishError
from framework.message import Message
from framework.observe import hublog
from framework.transports.nats import route_wire, wire
from framework.transports.nats.route_wire import Interest, NoInterest, Routed, RouteEvent
from framework.transports.nats.urls import Secrets
from framework.transports.nats_route import publishes
from framework.transports.nats_route.interest import Interests, Wanted
from framework.transports.nats_route.members import is_peer
from framework.transports.nats_route.mesh import Mesh
from framework.transports.nats_route.publishes import CONNECT_TIMEOUT, Sent
from framework.transports.nats_route.reading import await_readers
from framework.transports.nats_route.route import Route
from framework.transports.nats_route.sessions import Heard, Sessions
from framework.transports.nats_route.urls import Cluster, Options
from framework.transports.nats_route.weights import draw

log = hublog.get(__name__)

SETTLE = 0.25
"""Seconds from the first route on in which other peers, which a server has told of us, dial us: before that a publish could miss
one of them."""
_REQUESTS = b"$SYS.REQ.SERVER."
"""Servers take requests of one another below this, in the system account."""


class Member(Protocol):
    """Whoever takes the messages of a queue group here. Called on the hub."""

    def heard(self, messages: list[Routed]) -> None:
        """What came in one read, in order."""

    def weight(self, members: int) -> int:
        """What it asks for, in a group of so many members."""

    def turn(self) -> None:
        """At the end of a turn in which it asked for that."""

    def lonely(self, error: Exception) -> None:
        """There is no route any more."""


class Turning(Protocol):
    """A member, or a session."""

    def turn(self) -> None: ...


class Subscription:
    """Of one queue group here."""

    __slots__ = ("member", "queue", "said", "subject")

    def __init__(self, subject: bytes, queue: bytes, member: Member) -> None:
        self.subject, self.queue, self.member = subject, queue, member
        self.said = 0
        """The weight that servers know."""

    def line(self, account: bytes) -> bytes:
        return route_wire.interest(Interest(account, self.subject, self.queue, self.said))


class Peer:
    """Of one cluster. ``close`` ends it."""

    def __init__(self, cluster: Cluster, options: Options, secrets: Secrets) -> None:
        self.node = cluster.node
        self.interests: Interests[Route] = Interests()
        self._account = options.account.encode()
        self._mine: dict[bytes, dict[bytes, Subscription]] = {}
        """Subject -> queue group -> who takes it here."""
        self._changed: dict[Subscription, None] = {}
        """Whose weight may be another."""
        self._turning: dict[Turning, None] = {}
        self._mesh = Mesh(cluster, options, secrets, self)
        self._loop: Any = get_hub().loop
        self._due = False
        self._prompt = False
        """A lone message is being handled: whoever waits for what it says waits for nothing else."""
        self._settled_at = 0.0
        self.news = Event()
        self.sessions = Sessions(self, self._account, options.system_account.encode())
        self.closed = False

    @property
    def routes(self) -> Collection[Route]:
        """To every other server that there is."""
        return self._mesh.routes.values()

    @property
    def max_payload(self) -> int:
        """Bytes of headers and body that every server takes. They do not refuse more on a route: their clients would be cut.
        Peers like us take all that can be read."""
        servers = (route.info for route in self.routes if not is_peer(route.info))
        return min((info.max_payload for info in servers), default=wire.MAX_PAYLOAD)

    def reach(self, timeout: float = CONNECT_TIMEOUT) -> None:
        """As ``Mesh.reach``."""
        self._mesh.reach(timeout)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.sessions.end()
            self._mesh.close()
            self.news.set()

    # --- subscribing ---------------------------------------------------------------------------------------

    def join(self, subject: bytes, queue: bytes, member: Member) -> Subscription:
        """Say it twice: of a queue group that is new to them, servers count the first weight as 1 where they remember who gets
        the subject (2.9 and 2.15)."""
        one = self._mine.setdefault(subject, {})[queue] = Subscription(subject, queue, member)
        one.said = member.weight(self._members(one))
        for route in self.routes:
            route.say(2 * one.line(self._account))
        self.news.set()
        return one

    def await_readers(self, timeout: float) -> None:
        """As ``reading.await_readers``, of all routes."""
        await_readers(self.routes, timeout)

    def leave(self, one: Subscription, then: Callable[[], None]) -> None:
        """``then`` is called when nothing more can come for it."""
        here = self._mine.get(one.subject, {})
        if here.get(one.queue) is not one:
            self._loop.run_callback(then)
            return
        waiting = set(self.routes)

        def answered(route: Route) -> None:
            waiting.discard(route)
            if not waiting:
                self._forget(one)
                then()

        one.said = 0
        self._changed.pop(one, None)
        goodbye = route_wire.no_interest(NoInterest(self._account, one.subject, one.queue))
        for route in list(waiting):
            route.say(goodbye)
            route.ping(lambda _, route=route: answered(route))  # type: ignore[misc]
        if not waiting:
            self._forget(one)
            self._loop.run_callback(then)

    def _forget(self, one: Subscription) -> None:
        here = self._mine.get(one.subject, {})
        if here.get(one.queue) is one:
            del here[one.queue]
            if not here:
                del self._mine[one.subject]
        self._turning.pop(one.member, None)

    def drop(self, one: Subscription) -> None:
        """As ``leave``, for whoever does not wait for the end."""
        self.leave(one, _nothing)

    def reweigh(self, one: Subscription) -> None:
        """Its member has another weight, perhaps: said once, at the end of the turn."""
        if one.said:
            self._changed[one] = None
            self.schedule()

    def wants_to_turn(self, member: Turning) -> None:
        self._turning[member] = None
        self.schedule()

    def _members(self, one: Subscription) -> int:
        return 1 + len(self.interests.wanted(one.subject).groups.get(one.queue, ()))

    # --- the turn of the hub -------------------------------------------------------------------------------

    def schedule(self) -> None:
        if not self._due:
            self._due = True
            self._loop.run_callback(self._turn)

    def _turn(self) -> None:
        self._due = False
        turning, self._turning = self._turning, {}
        for member in turning:
            member.turn()
        changed, self._changed = self._changed, {}
        for one in changed:
            self._advertise(one)
        for route in list(self.routes):
            route.flush()

    def _advertise(self, one: Subscription) -> None:
        weight = one.member.weight(self._members(one))
        if one.said and weight != one.said:
            one.said = weight
            line = one.line(self._account)
            for route in self.routes:
                route.say(line)

    # --- mesh.User -----------------------------------------------------------------------------------------

    def _all(self) -> list[Subscription]:
        return [one for groups in self._mine.values() for one in groups.values() if one.said]

    def mine(self) -> set[tuple[bytes, bytes]]:
        """Subjects and queue groups that are subscribed to here."""
        return {(one.subject, one.queue) for one in self._all()}

    def subscriptions(self) -> bytes:
        return b"".join(one.line(self._account) for one in self._all()) + self.sessions.lines()

    def joined(self, route: Route) -> None:
        """What was said with the introduction may have changed since, and is to be said twice in any case (``join``)."""
        route.say(2 * self.subscriptions())
        route.ping()
        self._settled_at = self._settled_at or monotonic() + SETTLE
        self.sessions.joined(route)
        self.news.set()

    def left(self, route: Route, error: Exception) -> None:
        self.interests.forget(route)
        self.sessions.left(error)
        self.news.set()
        if not self.routes:
            for one in [one for groups in self._mine.values() for one in groups.values()]:
                one.member.lonely(error)

    def ended(self, route: Route, error: Exception) -> None:
        self._mesh.ended(route, error)

    def heard(self, route: Route, events: list[RouteEvent]) -> None:
        batches: dict[Member, list[Routed]] = {}
        answers: dict[Heard, list[Routed]] = {}
        inbox, some = b"", list[Routed]()
        last, group = Routed(b"", b"", b"", (), b"", b""), list[Routed]()
        for event in events:
            if type(event) is Routed:
                if event.queues:
                    if event.queues == last.queues and event.subject == last.subject and event.account == last.account:
                        group.append(event)  # most are for the group of the one before
                    elif (found := self._sort(event, batches)) is not None:
                        last, group = event, found
                    continue
                if event.subject != inbox:  # most come to the inbox of the one before
                    inbox = event.subject
                    listener = self.sessions.listener(inbox)
                    some = answers.setdefault(listener, []) if listener is not None else []
                some.append(event)
            elif type(event) is Interest:
                if event.account == self._account:
                    self.interests.add(route, event.subject, event.queue, event.weight)
                    self._note(event.subject)
                elif event.subject.startswith(_REQUESTS):
                    self.sessions.takes_requests(event.account)
            elif type(event) is NoInterest:
                if event.account == self._account:
                    self.interests.remove(route, event.subject, event.queue)
                    self._note(event.subject)
            elif isinstance(event, wire.Info):
                self._mesh.told(route, event)
            elif isinstance(event, wire.Err):
                log.warning("nats-server %s: %s", route.server, event.words)
        self._prompt = len(events) == 1
        for member, batch in batches.items():
            member.heard(batch)
        self._prompt = False
        for heard, answered in answers.items():
            heard(answered, route.heard_at)

    def _note(self, subject: bytes) -> None:
        self.news.set()
        self.sessions.changed(subject)

    def _sort(self, message: Routed, batches: dict[Member, list[Routed]]) -> list[Routed] | None:
        """It is for one member of each of its queue groups. Of a group that was left here just now, another member gets it.

        Returns the batch that others of the same subject and groups belong to, where it is one alone."""
        if message.account != self._account:
            return None
        groups, batch = self._mine.get(message.subject, {}), None
        for queue in message.queues:
            if (one := groups.get(queue)) is None:
                self.hand_on(message.subject, queue, message)
            else:
                batch = batches.setdefault(one.member, [])
                batch.append(message)
        return batch if len(message.queues) == 1 else None

    # --- in the hub's place, from another native thread ----------------------------------------------------

    def rescue(self, now: float, expired: Collection[Message]) -> None:
        """``contract.Rescuable``. Only of sessions there are leases to keep."""
        for route in list(self.routes):
            route.rescue(now, expired)
        self.sessions.rescue(now, expired)

    def rescued(self) -> None:
        self.resumed()
        for route in list(self.routes):
            route.rescued()

    def resumed(self) -> None:
        """As ``route.Owner``."""
        self.sessions.resumed()

    # --- sending -------------------------------------------------------------------------------------------

    def hand_on(self, subject: bytes, queue: bytes, message: Routed) -> bool:
        """To another member of the queue group, on another server; whether there is one."""
        others = list(self.interests.wanted(subject).groups.get(queue, {}).items())
        if not others:
            return False
        draw(others).say(
            route_wire.routed(
                Routed(self._account, subject, message.reply, (queue,), message.headers, message.body)
            )
        )  # fmt: skip
        return True

    def publish(self, subject: bytes, block: bytes, bodies: Sequence[bytes], timeout: float) -> list[PublishError | None]:
        """As ``publishes.publish``."""
        return publishes.publish(self, subject, block, bodies, timeout)

    def settling(self) -> float:
        """Seconds in which other peers may still dial us, of whom a server has told."""
        return self._settled_at - monotonic()

    def wants(self, subject: bytes) -> bool:
        """Somebody has subscribed, here or elsewhere."""
        return bool(self._mine.get(subject) or self.interests.wanted(subject))

    def send(self, subject: bytes, block: bytes, body: bytes, reply: bytes = b"") -> Sent:
        """To each server that wants it, and of each queue group to one member, which may be here."""
        wanted = self.interests.wanted(subject)
        to: dict[Route, tuple[bytes, ...]] = dict.fromkeys(wanted.plain, ())
        here: list[Subscription] = []
        for queue, one in self._groups(subject, wanted):
            chosen = draw([*wanted.groups.get(queue, {}).items(), *([(None, one.said)] if one is not None else [])])
            if chosen is not None:
                to[chosen] = (*to.get(chosen, ()), queue)
            elif one is not None:
                here.append(one)
        for route, queues in to.items():
            route.say(route_wire.routed(Routed(self._account, subject, reply, queues, block, body)))
            if self._prompt:
                route.push()
        for one in here:
            self._loop.run_callback(one.member.heard, [Routed(self._account, subject, reply, (one.queue,), block, body)])
        return Sent(to, bool(here))

    def _groups(self, subject: bytes, wanted: Wanted[Route]) -> list[tuple[bytes, Subscription | None]]:
        """Every queue group that wants it, and who takes it here."""
        mine = {queue: one for queue, one in self._mine.get(subject, {}).items() if one.said}
        return [(queue, mine.get(queue)) for queue in {**wanted.groups, **mine}]


def _nothing() -> None:
    """Nobody waits for it."""
