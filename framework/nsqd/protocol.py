"""The state machine of one client of the V2 protocol: a table of commands, and what each does. Source: nsqd v1.3.0."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import NamedTuple

from gevent.socket import SHUT_RDWR, socket

from framework.names import is_valid
from framework.nsqd import golang, identify
from framework.nsqd.alarm import Alarm
from framework.nsqd.bodies import Bodies, Refused
from framework.nsqd.broker import Broker
from framework.nsqd.channel import Channel
from framework.nsqd.journal import NotStored
from framework.nsqd.lease import Leases
from framework.nsqd.store import Entry
from framework.nsqd.streams import EndOfStream, Incoming, Outgoing
from framework.nsqd.topic import Topic
from framework.transports.nsq.wire import CLOSE_WAIT, FRAME_ERROR, FRAME_RESPONSE, HEARTBEAT, MAGIC, OK, encode_frame

INIT, SUBSCRIBED, CLOSING = 0, 3, 4
"""Numbers as /stats gives them; nsqd's 1 and 2 are never seen."""

_FINS = re.compile(rb"(?:FIN [^\n\r ]{16}\n)+")
_OK = encode_frame(FRAME_RESPONSE, OK)
_HEARTBEAT = encode_frame(FRAME_RESPONSE, HEARTBEAT)
_LINGER_SECONDS = 1.0


def _invalid(words: str) -> Refused:
    return Refused("E_INVALID", words)


class Client:
    """One connection. ``run`` is its reader's greenlet; deliveries come from the channel, on the hub."""

    def __init__(self, broker: Broker, sock: socket, address: str) -> None:
        self.broker = broker
        self.options = broker.options
        self.address = address
        self.state = INIT
        self.wishes = identify.Wishes(client_id=address.rpartition(":")[0], hostname=address.rpartition(":")[0])
        self.granted = identify.default(self.options)
        self.connected = time.time()
        self.channel: Channel | None = None
        self.ready = 0
        self.leases = Leases(0.0, 0.0, lambda leases, message: None)
        self.sample_rate = 0
        self.message_count = self.finish_count = self.requeue_count = 0
        self.published: dict[str, int] = {}
        self._sock = sock
        self._incoming = Incoming(sock, self._settle)
        self._bodies = Bodies(self._incoming, self.options)
        self._outgoing = Outgoing(sock, self._serve, lambda: self.close("it does not read"))
        self._entries: list[tuple[Topic, Entry]] = []
        self._command = ""
        self._wants = False
        self._armed = 0.0
        self._beat = Alarm(self._send_heartbeat)
        self._silence = Alarm(self._check_silence)
        self._identified = False

    # --- the connection's life -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve the client until it leaves or must."""
        try:
            if self._incoming.take(4) != MAGIC:
                self._outgoing.write([encode_frame(FRAME_ERROR, b"E_BAD_PROTOCOL")])
                return
            self._start_heartbeat()
            while True:
                self._next()
        except EndOfStream:
            pass
        finally:
            self._end()

    def _end(self) -> None:
        self._beat.cancel()
        self._silence.cancel()
        if self.channel is not None:  # first, so that it is sent no more messages while its last frames go out
            self.channel.unsubscribe(self)
            self.channel.topic.client_left(self.channel)
            self.channel.serve()
        self._outgoing.linger(_LINGER_SECONDS)
        self._outgoing.close()
        self._read_out()
        self._sock.close()

    def _read_out(self) -> None:
        """Take what has arrived: closing with unread bytes would be a reset, which can overtake our last frame."""
        self._sock.setblocking(False)
        try:
            for _ in range(64):
                if not self._sock.recv(1 << 16):
                    break
        except OSError:
            pass

    def close(self, reason: str) -> None:
        """End the connection from elsewhere on the hub; does not block."""
        self.broker.log("INFO", f"TCP: closing client({self.address}): {reason}")
        try:
            self._sock.shutdown(SHUT_RDWR)
        except OSError:
            pass
        self._outgoing.close()

    def _start_heartbeat(self) -> None:
        interval = self.granted.heartbeat_interval
        self._beat.cancel()
        self._silence.cancel()
        self._outgoing.patience = interval or None
        if interval:
            now = time.monotonic()
            self._beat.set(now + interval)
            self._silence.set(now + 2 * interval)

    def _send_heartbeat(self) -> None:
        self._outgoing.write([_HEARTBEAT])
        self._beat.set(time.monotonic() + self.granted.heartbeat_interval)

    def _check_silence(self) -> None:
        """nsqd's read deadline: two intervals from where it began to wait for a command, its body included."""
        deadline = self._armed + 2 * self.granted.heartbeat_interval
        if time.monotonic() >= deadline:
            self.close("it is silent")
        else:
            self._silence.set(deadline)

    # --- commands --------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        self._armed = time.monotonic()
        incoming = self._incoming
        if self.state >= SUBSCRIBED and (run := _FINS.match(incoming.buffer, incoming.position)):
            incoming.position = run.end()
            self._finish(bytes(run[0])[4:-1].split(b"\nFIN "))
            return
        try:
            self._execute(incoming.line().split(b" "))
        except Refused as refused:
            self._answer_error(refused)
            if refused.fatal:
                raise EndOfStream from refused

    def _execute(self, words: list[bytes]) -> None:
        command = COMMANDS.get(words[0])
        name = _text(words[0])
        if command is None:
            raise _invalid(f"invalid command {name}")
        if command.states is not None and self.state not in command.states:
            raise _invalid(f"cannot {name} in current state")
        command.run(self, words)

    def _answer(self, data: bytes) -> None:
        """A response, behind those of publishes that wait for the disk."""
        self._settle()
        self._outgoing.write([encode_frame(FRAME_RESPONSE, data)])

    def _answer_error(self, refused: Refused) -> None:
        try:
            self._settle()
        except Refused as earlier:
            refused = earlier
        self._outgoing.write([encode_frame(FRAME_ERROR, str(refused).encode("utf-8", "surrogateescape"))])

    def _settle(self) -> None:
        """Before waiting for more: commit and confirm what was published, deliver for what was finished."""
        if self._wants:
            self._serve()
        if self._entries:
            self._commit()
        self._outgoing.wait()

    def _commit(self) -> None:
        entries, self._entries = self._entries, []
        group = self.broker.publish(entries)
        if group is not None:
            try:
                group.wait()
            except NotStored as error:
                raise Refused(f"E_{self._command}_FAILED", f"{self._command} failed {error}") from error
        for topic, entry in entries:
            self.published[topic.name] = self.published.get(topic.name, 0) + entry.count
        self._outgoing.write([_OK * len(entries)])

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
            raise _invalid("cannot SUB with heartbeats disabled")
        if len(words) < 3:
            raise _invalid("SUB insufficient number of parameters")
        topic_name = _name(words[1], "E_BAD_TOPIC", "SUB topic name")
        channel_name = _name(words[2], "E_BAD_CHANNEL", "SUB channel name")
        topic = self.broker.topic(topic_name)
        channel = topic.channel(channel_name)
        limit = self.options.max_channel_consumers
        if limit and len(channel.clients) >= limit:
            raise Refused("E_SUB_FAILED", f"SUB failed consumers for {topic_name}:{channel_name} exceeds limit of {limit}")
        self.leases = channel.new_leases(self.granted.msg_timeout)
        self.sample_rate = self.granted.sample_rate
        self.channel, self.state = channel, SUBSCRIBED
        channel.subscribe(self)
        try:
            self.broker.settle(topic)
        except NotStored as error:
            raise Refused("E_SUB_FAILED", f"SUB failed {error}") from error
        self._answer(OK)

    def _rdy(self, words: list[bytes]) -> None:
        if self.state == CLOSING:
            return
        number = golang.base10(words[1]) if len(words) > 1 else 1
        if number is None:
            raise _invalid(f"RDY could not parse count {_text(words[1])}")
        count = golang.signed(number)
        if not 0 <= count <= self.options.max_rdy_count:
            raise _invalid(f"RDY count {count} out of range 0-{self.options.max_rdy_count}")
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
                self._answer_error(_not_fatal("FIN", message_id, words))

    def _fin(self, words: list[bytes]) -> None:
        self._finish([_message_id("FIN", words, 2)])

    def _req(self, words: list[bytes]) -> None:
        message_id = _message_id("REQ", words, 3)
        number = golang.base10(words[2])
        if number is None:
            raise _invalid(f"REQ could not parse timeout {_text(words[2])}")
        delay = min(max(0, golang.signed(number * 1_000_000 % (1 << 64)) / 1e9), self.options.max_req_timeout)
        assert self.channel is not None
        self._wants = True
        refusal = self.channel.requeue(self, message_id, delay)
        if refusal is not None:
            raise _not_fatal("REQ", message_id, refusal)
        self.requeue_count += 1

    def _touch(self, words: list[bytes]) -> None:
        message_id = _message_id("TOUCH", words, 2)
        assert self.channel is not None
        refusal = self.channel.touch(self, message_id)
        if refusal is not None:
            raise _not_fatal("TOUCH", message_id, refusal)

    def _cls(self, words: list[bytes]) -> None:
        self.ready = 0
        self.state = CLOSING
        self._answer(CLOSE_WAIT)

    def _nop(self, words: list[bytes]) -> None:
        pass

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
            self._start_heartbeat()
        self._answer(identify.answer(wishes, self.granted, self.options) if wishes.feature_negotiation else OK)

    def _auth(self, words: list[bytes]) -> None:
        if len(words) != 1:
            raise _invalid("AUTH invalid number of parameters")
        self._bodies.body("AUTH")
        raise Refused("E_AUTH_DISABLED", "AUTH disabled")

    # --- publishing ------------------------------------------------------------------------------------------------

    def _pub(self, words: list[bytes]) -> None:
        name = _topic_name("PUB", words, 2)
        self._queue("PUB", name, self._bodies.message("PUB"), 1)

    def _dpub(self, words: list[bytes]) -> None:
        name = _topic_name("DPUB", words, 3)
        number = golang.base10(words[2])
        if number is None:
            raise _invalid(f"DPUB could not parse timeout {_text(words[2])}")
        delay = golang.signed(number * 1_000_000 % (1 << 64)) / 1e9
        if not 0 <= delay <= self.options.max_req_timeout:
            raise _invalid(f"DPUB timeout {number} out of range 0-{round(self.options.max_req_timeout * 1000)}")
        due = int((time.time() + delay) * 1000) if delay else 0
        self._queue("DPUB", name, self._bodies.message("DPUB"), 1, due)

    def _mpub(self, words: list[bytes]) -> None:
        if len(words) < 2:
            raise _invalid("MPUB insufficient number of parameters")
        name = _name(words[1], "E_BAD_TOPIC", "E_BAD_TOPIC MPUB topic name")
        self.broker.topic(name)
        self._queue("MPUB", name, *self._bodies.messages())

    def _queue(self, command: str, topic_name: str, payload: bytes, count: int, due: int = 0) -> None:
        """Publish with the next commit; the OK follows it."""
        if self._command != command and self._entries:
            self._settle()
        self._command = command
        topic = self.broker.topic(topic_name)
        self._entries.append((topic, Entry(topic.id, payload, count, due)))


class Command(NamedTuple):
    run: Callable[[Client, list[bytes]], None]
    states: tuple[int, ...] | None
    """The states that it is allowed in; None: all."""


COMMANDS: dict[bytes, Command] = {
    b"IDENTIFY": Command(Client._identify, (INIT,)),
    b"AUTH": Command(Client._auth, (INIT,)),
    b"SUB": Command(Client._sub, (INIT,)),
    b"RDY": Command(Client._rdy, (SUBSCRIBED, CLOSING)),
    b"FIN": Command(Client._fin, (SUBSCRIBED, CLOSING)),
    b"REQ": Command(Client._req, (SUBSCRIBED, CLOSING)),
    b"TOUCH": Command(Client._touch, (SUBSCRIBED, CLOSING)),
    b"CLS": Command(Client._cls, (SUBSCRIBED,)),
    b"NOP": Command(Client._nop, None),
    b"PUB": Command(Client._pub, None),
    b"MPUB": Command(Client._mpub, None),
    b"DPUB": Command(Client._dpub, None),
}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _name(raw: bytes, code: str, what: str) -> str:
    name = raw.decode("latin-1")
    if not is_valid(name):
        raise Refused(code, f"{what} {golang.quote(raw)} is not valid")
    return name


def _topic_name(command: str, words: list[bytes], least: int) -> str:
    if len(words) < least:
        raise _invalid(f"{command} insufficient number of parameters")
    return _name(words[1], "E_BAD_TOPIC", f"{command} topic name")


def _message_id(command: str, words: list[bytes], least: int) -> bytes:
    if len(words) < least:
        raise _invalid(f"{command} insufficient number of params")
    if len(words[1]) != 16:
        raise _invalid("invalid message ID")
    return words[1]


def _not_fatal(command: str, message_id: bytes, words: str) -> Refused:
    return Refused(f"E_{command}_FAILED", f"{command} {_text(message_id)} failed {words}", fatal=False)
