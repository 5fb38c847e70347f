"""The state machine of one client of the V2 protocol: a table of commands, and what each does. Source: nsqd v1.3.0."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import NamedTuple

from gevent.socket import socket

from framework import names
from framework.nsqd import arguments, golang, identify, payloads
from framework.nsqd.bodies import Bodies, Refused
from framework.nsqd.broker import Broker
from framework.nsqd.channel import Channel
from framework.nsqd.client_connection import ClientConnection
from framework.nsqd.journal import NotStored
from framework.nsqd.lease import Leases
from framework.nsqd.permission import Permission
from framework.nsqd.publishing import Publishing
from framework.nsqd.streams import EndOfStream
from framework.nsqd.topic import Topic
from framework.nsqd.underway import Memory
from framework.transports.nsq.stream import Deflate, Snappy
from framework.transports.nsq.wire import CLOSE_WAIT, MAGIC, OK

INIT, SUBSCRIBED, CLOSING = 0, 3, 4
"""Numbers as /stats gives them; nsqd's 1 and 2 are never seen."""

_FINS = re.compile(rb"(?:FIN %b\n){1,1000}" % arguments.MESSAGE_ID)
_NOPS = re.compile(rb"(?:NOP\r?\n){1,5000}+")
_PUB = re.compile(rb"PUB (%b)\n" % names.KEPT.encode())


class Client:
    """One client. ``run`` is its reader's greenlet; deliveries come from the channel, on the hub."""

    _allowed: dict[bytes, Command]
    _many: list[Many]
    """Those of which many may come at once."""
    _topic: Topic
    """That of the channel, where there is one; with it comes the sample's rate."""
    sample_rate: int

    def __init__(self, broker: Broker, sock: socket, address: str, memory: Memory) -> None:
        """``memory`` is for bodies, those of other clients included."""
        self.broker = broker
        self.options = broker.options
        self.connection = ClientConnection(sock, address, broker.log, self._settle, self._serve, memory=memory)
        self.address = address
        host = address.rpartition(":")[0]
        self.wishes = identify.Wishes(client_id=host, hostname=host)
        self.granted = identify.default(self.options)
        self.connected = time.time()
        self.channel: Channel | None = None
        self.ready = 0
        self.leases = Leases(0.0, 0.0, lambda leases, message: None)
        self.message_count = self.finish_count = self.requeue_count = 0
        self._incoming = self.connection.incoming
        self._outgoing = self.connection.outgoing
        self._bodies = Bodies(self._incoming, self.options)
        self._wants = False
        self._identified = False
        self.permission = Permission(self.options, address, broker.log)
        self.publishing = Publishing(broker, self._settle, self._outgoing)
        self._enter(INIT)

    # --- the connection's life -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve the client until it leaves or must."""
        try:
            self.connection.await_hello(self.options.client_timeout)
            if self._incoming.take(4) != MAGIC:
                self.connection.fail("E_BAD_PROTOCOL")
                return
            self.connection.start_heartbeat(self.granted.heartbeat_interval)
            while True:
                self._next()
        except EndOfStream:
            pass
        finally:
            self._end()

    def _end(self) -> None:
        if self.channel is not None:  # first, so that it is sent no more messages while its last frames go out
            self.channel.unsubscribe(self)
            self._topic.client_left(self.channel)
        self.connection.end()

    def close(self, reason: str) -> None:
        """End the connection from elsewhere on the hub; does not block."""
        self.connection.close(reason)

    # --- commands --------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        incoming = self._incoming
        incoming.slices.breathe()  # a client that always has data must not hold up others
        self.connection.armed = time.monotonic()
        try:
            if incoming.position == len(incoming.buffer):
                incoming.more()  # so that the first of many that come together is one of the many
            for many in self._many:
                if (found := many.pattern.match(incoming.buffer, incoming.position)) and many.take(self, found):
                    return
            self._execute(incoming.line().split(b" "))
        except Refused as refused:
            self._answer_error(refused)
            if refused.fatal:
                raise EndOfStream from refused

    def _execute(self, words: list[bytes]) -> None:
        command = self._allowed.get(words[0])
        if command is None:
            raise arguments.invalid(self._why_not(words[0]))
        command.run(self, words)

    def _enter(self, state: int) -> None:
        """Allow the commands of this state, and those only."""
        self.state = state
        if self.options.tls_required and self.connection.tls is None:
            self._allowed = {b"IDENTIFY": COMMANDS[b"IDENTIFY"]}
        else:
            self._allowed = {name: one for name, one in COMMANDS.items() if one.states is None or state in one.states}
        self._many = [one.many for one in self._allowed.values() if one.many is not None]

    def _why_not(self, command: bytes) -> str:
        name = arguments.text(command)
        if self.options.tls_required and self.connection.tls is None:
            return f"cannot {name} in current state (TLS required)"
        return f"cannot {name} in current state" if command in COMMANDS else f"invalid command {name}"

    def _answer(self, data: bytes) -> None:
        """A response, behind those of publishes that wait for the disk."""
        self._settle()
        self.connection.respond(data)

    def _answer_error(self, refused: Refused) -> None:
        try:
            self._settle()
        except Refused as earlier:
            refused = earlier
        self.connection.fail(str(refused))

    def _settle(self) -> None:
        """Before waiting for more: commit and confirm what was published, deliver for what was finished."""
        if self._wants:
            self._serve()
        self.publishing.commit()
        self._outgoing.wait()

    def _serve(self) -> None:
        self._wants = False
        if self.channel is not None:
            self.channel.serve()

    # --- consuming -------------------------------------------------------------------------------------------------

    def room(self) -> int:
        return 0 if self._outgoing.full else self.ready - len(self.leases.messages)

    def send(self, frames: list[bytes], count: int) -> None:
        self.message_count += count
        self._outgoing.write(frames)

    def sampled(self) -> bool:
        return random.randrange(100) <= self.sample_rate

    def _sub(self, words: list[bytes]) -> None:
        if not self.granted.heartbeat_interval:
            raise arguments.invalid("cannot SUB with heartbeats disabled")
        if len(words) < 3:
            raise arguments.invalid("SUB insufficient number of parameters")
        topic_name = arguments.name(words[1], "E_BAD_TOPIC", "SUB topic name")
        channel_name = arguments.name(words[2], "E_BAD_CHANNEL", "SUB channel name")
        self.permission.check("SUB", topic_name, channel_name, self.connection.tls)
        topic = self.broker.topic(topic_name)
        channel = topic.channel(channel_name)
        limit = self.options.max_channel_consumers
        if limit and len(channel.clients) >= limit:
            raise Refused("E_SUB_FAILED", f"SUB failed consumers for {topic_name}:{channel_name} exceeds limit of {limit}")
        self.leases = channel.new_leases(self.granted.msg_timeout)
        self.sample_rate = self.granted.sample_rate
        self._topic, self.channel = topic, channel
        self._enter(SUBSCRIBED)
        channel.subscribe(self)
        try:
            if not channel.declared:
                topic.settle()
        except NotStored as error:
            raise Refused("E_SUB_FAILED", f"SUB failed {error}") from error
        self._answer(OK)

    def _rdy(self, words: list[bytes]) -> None:
        if self.state == CLOSING:
            return
        number = golang.base10(words[1]) if len(words) > 1 else 1
        if number is None:
            raise arguments.invalid(f"RDY could not parse count {arguments.text(words[1])}")
        count = golang.signed(number)
        if not 0 <= count <= self.options.max_rdy_count:
            raise arguments.invalid(f"RDY count {count} out of range 0-{self.options.max_rdy_count}")
        self.ready = count
        self._wants = True

    def _finish(self, ids: list[bytes]) -> None:
        assert self.channel is not None
        self._wants = True
        finish = self.channel.finish
        for message_id in ids:
            if (words := finish(self, message_id)) is None:
                self.finish_count += 1
            else:
                self._answer_error(arguments.not_fatal("FIN", message_id, words))

    def _fins(self, found: re.Match[bytes]) -> bool:
        self._incoming.position = found.end()
        self._finish(found[0][4:-1].split(b"\nFIN "))
        return True

    def _fin(self, words: list[bytes]) -> None:
        self._finish([arguments.message_id("FIN", words, 2)])

    def _req(self, words: list[bytes]) -> None:
        message_id = arguments.message_id("REQ", words, 3)
        number = golang.base10(words[2])
        if number is None:
            raise arguments.invalid(f"REQ could not parse timeout {arguments.text(words[2])}")
        delay = min(golang.signed(number * 1_000_000 % (1 << 64)) / 1e9, self.options.max_req_timeout)
        assert self.channel is not None
        self._wants = True
        refusal = self.channel.requeue(self, message_id, delay)
        if refusal is not None:
            raise arguments.not_fatal("REQ", message_id, refusal)
        self.requeue_count += 1

    def _touch(self, words: list[bytes]) -> None:
        message_id = arguments.message_id("TOUCH", words, 2)
        assert self.channel is not None
        refusal = self.channel.touch(self, message_id)
        if refusal is not None:
            raise arguments.not_fatal("TOUCH", message_id, refusal)

    def _cls(self, words: list[bytes]) -> None:
        self.ready = 0
        self._enter(CLOSING)
        self._answer(CLOSE_WAIT)

    def _nop(self, words: list[bytes]) -> None:
        """And those behind it: half a million of them would be silence for as long as as many commands take."""
        if run := _NOPS.match(self._incoming.buffer, self._incoming.position):
            self._incoming.position = run.end()

    # --- negotiation -----------------------------------------------------------------------------------------------

    def _identify(self, words: list[bytes]) -> None:
        body = self._bodies.body("IDENTIFY")
        try:
            wishes = identify.decode(body)
        except (ValueError, RecursionError):
            raise Refused("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
        try:
            identify.grant(wishes, self.granted, self.options)
        except ValueError as error:
            raise Refused("E_BAD_BODY", f"IDENTIFY {error}") from None
        self.wishes = wishes
        if not self._identified:  # nsqd too heeds the first one's heartbeat only
            self._identified = True
            self.connection.start_heartbeat(self.granted.heartbeat_interval)
        if wishes.feature_negotiation:
            self._negotiate(wishes)
        else:
            self._answer(OK)

    def _negotiate(self, wishes: identify.Wishes) -> None:
        """The answer in clear, then an OK through each layer that was asked for."""
        granted = self.granted
        try:
            identify.grant_upgrades(wishes, granted, self.options)
        except ValueError as error:
            raise Refused("E_IDENTIFY_FAILED", str(error)) from None
        self._answer(identify.answer(granted, self.options))
        if granted.tls and self.options.tls_context is not None:
            try:
                self.connection.secure(self.options.tls_context)
            except OSError as error:
                raise Refused("E_IDENTIFY_FAILED", f"IDENTIFY failed {error}") from error
            self._enter(self.state)
            self._answer(OK)
        if granted.snappy or granted.deflate:
            self.connection.compress(Snappy() if granted.snappy else Deflate(granted.deflate_level))
            self._answer(OK)

    def _auth(self, words: list[bytes]) -> None:
        if len(words) != 1:
            raise arguments.invalid("AUTH invalid number of parameters")
        secret = self._bodies.body("AUTH")
        self._answer(self.permission.ask(arguments.text(secret), self.connection.tls))

    # --- publishing ------------------------------------------------------------------------------------------------

    def _pubs(self, found: re.Match[bytes]) -> bool:
        """False: the first has not come whole, or is wrong, or each is to be looked at: the permission may run out."""
        if self.options.auth_http_addresses:
            return False
        payload, count = self._bodies.run(found[0])
        if count:
            self.publishing.add("PUB", found[1].decode(), [(payload, count)], publishes=count)
        return count > 0

    def _pub(self, words: list[bytes]) -> None:
        name = arguments.topic_name("PUB", words, 2)
        message = self._bodies.message("PUB")
        self.permission.check("PUB", name, "", self.connection.tls)
        self.publishing.add("PUB", name, [(message, 1)])

    def _dpub(self, words: list[bytes]) -> None:
        name = arguments.topic_name("DPUB", words, 3)
        number = golang.base10(words[2])
        if number is None:
            raise arguments.invalid(f"DPUB could not parse timeout {arguments.text(words[2])}")
        delay = golang.signed(number * 1_000_000 % (1 << 64)) / 1e9
        if not 0 <= delay <= self.options.max_req_timeout:
            raise arguments.invalid(f"DPUB timeout {number} out of range 0-{round(self.options.max_req_timeout * 1000)}")
        due = int(self.broker.clock.now() + delay * 1000) if delay else 0
        message = self._bodies.message("DPUB")
        self.permission.check("DPUB", name, "", self.connection.tls)
        self.publishing.add("DPUB", name, [(message, 1)], due)

    def _mpub(self, words: list[bytes]) -> None:
        if len(words) < 2:
            raise arguments.invalid("MPUB insufficient number of parameters")
        name = arguments.name(words[1], "E_BAD_TOPIC", "E_BAD_TOPIC MPUB topic name")
        self.permission.check("MPUB", name, "", self.connection.tls)
        self.broker.topic(name)
        self.publishing.add("MPUB", name, payloads.cut(*self._bodies.messages()))


class Many(NamedTuple):
    """The same command many times over, done at once."""

    pattern: re.Pattern[bytes]
    take: Callable[[Client, re.Match[bytes]], bool]
    """False: what was found is to be done one by one."""


class Command(NamedTuple):
    run: Callable[[Client, list[bytes]], None]
    states: tuple[int, ...] | None
    """The states that it is allowed in; None: all."""
    many: Many | None = None


COMMANDS: dict[bytes, Command] = {
    b"IDENTIFY": Command(Client._identify, (INIT,)),
    b"AUTH": Command(Client._auth, (INIT,)),
    b"SUB": Command(Client._sub, (INIT,)),
    b"RDY": Command(Client._rdy, (SUBSCRIBED, CLOSING)),
    b"FIN": Command(Client._fin, (SUBSCRIBED, CLOSING), Many(_FINS, Client._fins)),
    b"REQ": Command(Client._req, (SUBSCRIBED, CLOSING)),
    b"TOUCH": Command(Client._touch, (SUBSCRIBED, CLOSING)),
    b"CLS": Command(Client._cls, (SUBSCRIBED,)),
    b"NOP": Command(Client._nop, None),
    b"PUB": Command(Client._pub, None, Many(_PUB, Client._pubs)),
    b"MPUB": Command(Client._mpub, None),
    b"DPUB": Command(Client._dpub, None),
}
