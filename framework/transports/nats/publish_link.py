"""One publishing connection to a cluster: messages of many greenlets under way at once, each answered by a PubAck in an inbox.

It lives on one hub. The ``Failover`` decides whether to try again, and where. Each message has an id by which its stream drops
doubles: so one whose answer was lost can be sent again. Source: the JetStream API reference (PubAck, Nats-Msg-Id); ADR-51.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from time import monotonic

import msgspec
from gevent.hub import get_hub

from framework.decoding import UNREADABLE
from framework.errors import REFUSALS, FrameworkError, MessageRefused, PublishError
from framework.transports.nats import headers, judgement, permission, wire
from framework.transports.nats.carrier import Publishing
from framework.transports.nats.outbox import Listening
from framework.transports.nats.session import Session
from framework.transports.nats.sessions import Servers
from framework.transports.nats.streams import LATER, NANO, SCHEDULES, Api, Refusal, StreamConfig, version_of
from framework.transports.nats.urls import Options
from framework.transports.publish_link import InDoubt, NotStored, Refused
from framework.transports.session_link import DOUBT, NoPlace, Run, SessionLink

WINDOW = 500
"""Messages of one ``ask_each`` that are under way at a time."""
CERTAIN = 0.8
"""The part of the time for which a stream remembers ids that we count on: the server's clock is not ours."""
_FULL = frozenset({10077, 10023, 10047, 10002})
"""The stream, or the server, has no room, and drops nothing to make some."""
_TOO_LARGE, _NO_SCHEDULES = 10054, frozenset({10188, 10189, 10190, 10191})
LONGEST = 2.0
"""Seconds that an answer about a stream may take, and no more than a part of what the publish has left."""
LOOK = 30.0
"""Seconds until a stream that is to keep messages for later is looked at again."""
_UNKNOWN = "whether the message is stored is not known"


class PubAck(msgspec.Struct, frozen=True):
    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: Refusal | None = None


_puback = msgspec.json.Decoder(PubAck)


class Command:
    """A message to be stored. ``head``: its header block, with the id by which doubles are dropped."""

    __slots__ = ("again", "body", "delay", "first_sent", "head", "node", "subject", "topic")

    def __init__(self, topic: str, subject: bytes, head: bytes, body: bytes, delay: float = 0.0) -> None:
        self.topic, self.subject, self.head, self.body, self.delay = topic, subject, head, body, delay
        self.first_sent = math.inf
        self.node = ""
        """Where it may be stored already; empty: nowhere."""
        self.again: bool | None = False
        """It may be sent there again; None: that is not known yet."""


class PublishLink(SessionLink[Command, Publishing], Listening):
    """``publish_link.PublishLink``, and a ``session.Owner``; made by ``to``."""

    def __init__(self, node: str, session: Publishing, options: Options) -> None:
        super().__init__(node, session)
        self._options = options
        self._runs: dict[int, tuple[PublishRun, int, object]] = {}
        """The token of an inbox -> whose answer it is, and where the question went, as far as is known."""
        self._tokens = 0
        self._patience = LONGEST
        self._streams: dict[str, StreamConfig | None] = {}
        self._looked: dict[str, float] = {}
        """Topic -> its stream, as it was when somebody looked (monotonic)."""
        self._inbox = session.acks  # a word more than those of questions have, whose numbers are tokens here
        session.listen(self._inbox, self)

    @classmethod
    def to(cls, servers: Servers, options: Options, timeout: float) -> PublishLink:
        """Dial one of ``servers``; blocks. Raises BrokerUnreachable, AccessDenied, BrokerError, ProtocolError."""
        until = monotonic() + timeout
        with servers.dial(timeout) as line:
            session = Session(line, options.ping_interval, servers.told)
        link = cls(servers.node, session, options)
        try:
            permission.hears(session, session.acks + b".*", max(0.0, until - monotonic()))
        except BaseException:
            link.close()
            raise
        return link

    # --- publishers ----------------------------------------------------------------------------------------

    def _answers(self, commands: Sequence[Command], timeout: float) -> list[Exception | None]:
        later = {command.topic for command in commands if command.delay}
        if later or any(command.node for command in commands):
            until = monotonic() + timeout
            self._patience = min(LONGEST, timeout / 4)
            self._look_into_doubts(commands)
            self._look_at_streams(later)
            timeout = max(until - monotonic(), 0.0)
        answers = super()._answers(commands, timeout)
        if not later:
            return answers
        nowhere = {i for i, answer in enumerate(answers) if commands[i].delay and isinstance(answer, NoPlace)}
        refusals = {topic: self._keeps_none_for_later(topic) for topic in {commands[i].topic for i in nowhere}}
        return [refusals[commands[i].topic] or answer if i in nowhere else answer for i, answer in enumerate(answers)]

    def _run(self, commands: Sequence[Command], timeout: float) -> list[Exception | None]:
        if self._session.error is not None:
            return [NotStored(str(self._session.error))] * len(commands)
        return PublishRun(self, commands, timeout).wait()

    def _make(self, topics: Collection[str], timeout: float) -> Exception | None:
        try:
            for topic in topics:
                Api(self._session, min(timeout, 5.0)).ensure_stream(topic, self._options)
        except FrameworkError as error:
            words = f"no stream keeps {', '.join(sorted(topics))}, and none could be made: {error}"
            return PublishError(words, stored=False) if isinstance(error, REFUSALS) else NotStored(words)
        return None

    def obstacle(self, command: Command) -> Exception | None:
        """Why it cannot be sent here at all."""
        size = len(command.head) + len(command.body)
        if size > self._session.info.max_payload:
            words = f"nats-server {self._session.server} takes {self._session.info.max_payload} bytes (its max_payload)"
            return MessageRefused(f"topic {command.topic!r}: a body with its headers has {size} bytes, and {words}", stored=False)
        if command.delay and version_of(self._session.info) < SCHEDULES:
            words = f"nats-server {self._session.info.version} keeps no publish for later: run 2.12 or newer"
            return _refused_later(command.topic, words)
        if command.delay and (stream := self._streams.get(command.topic)) and (words := judgement.drops(stream, command.delay)):
            return _refused_later(command.topic, words)
        if command.node and command.again is None:
            return InDoubt(f"topic {command.topic!r}: {_UNKNOWN}, and not yet whether sending it again would double it")
        if command.node and not command.again:
            return PublishError(f"topic {command.topic!r}: {_UNKNOWN}, and sending it again might double it", stored=None)
        return None

    def _look_into_doubts(self, commands: Sequence[Command]) -> None:
        """Which of those that may be stored can be sent again, because their stream still remembers their ids."""
        here = {command.topic for command in commands if command.node == self.node}
        windows = {topic: self._window(topic) for topic in here}
        for command in commands:
            window = windows.get(command.topic, 0.0) if command.node == self.node else 0.0
            command.again = None if window is None else monotonic() - command.first_sent < CERTAIN * window

    def _look_at_streams(self, topics: Collection[str]) -> None:
        """Whether they keep messages for later: what is dropped before it is due has been confirmed all the same."""
        now = monotonic()
        for topic in topics:
            if now - self._looked.get(topic, -math.inf) >= LOOK:
                self._looked[topic], self._streams[topic] = now, self._config(topic)

    def _config(self, topic: str) -> StreamConfig | None:
        """Of the stream that keeps ``topic``; None: there is none, or nobody says."""
        try:
            api = Api(self._session, self._patience)
            stream = api.stream(api.stream_of(topic))
        except FrameworkError:
            return None
        return stream.config if stream is not None else None

    def _keeps_none_for_later(self, topic: str) -> MessageRefused | None:
        """Why the stream of ``topic``, which somebody else made, keeps none; None: that is not known."""
        config, subject = self._config(topic), f"{LATER}{topic}.*"
        if config is None or subject in config.subjects:
            return None
        return _refused_later(topic, f"stream {config.name} does not keep {subject}: add that to its subjects")

    def _window(self, topic: str) -> float | None:
        """Seconds for which the stream of ``topic`` drops doubles; None: nobody says so now, as while a cluster has no leader."""
        try:
            api = Api(self._session, self._patience)
            stream = api.stream(api.stream_of(topic))
        except FrameworkError:
            return None
        return stream.config.duplicate_window / NANO if stream is not None else 0.0

    def send(self, run: PublishRun, number: int, command: Command) -> int:
        """Say it with the next flush; returns where its last byte lies in the stream of all that is said."""
        self._tokens += 1
        inbox = b"%b.%d" % (self._inbox, self._tokens)
        went = self._session.publish(command.subject, command.body, inbox, command.head)
        self._runs[self._tokens] = run, number, went
        return self._tokens

    def astray(self, token: int, command: Command) -> bool:
        """It went where nobody keeps it any more: its answer does not come."""
        _, _, went = self._runs[token]
        return self._session.astray(command.subject, went)

    @property
    def _owes(self) -> bool:
        return bool(self._runs)

    def prove(self, until: float) -> Exception | None:
        """As ``publish_link.PublishLink``: JetStream answers, and stores nothing."""
        try:
            self._session.ask(b"$JS.API.INFO", b"", max(0.0, until - monotonic()))
        except FrameworkError as error:
            return error
        return None

    # --- answers -------------------------------------------------------------------------------------------

    def heard(self, messages: list[wire.Msg], at: float) -> None:
        for message in messages:
            token = message.subject.rpartition(b".")[2]
            run, number, _ = self._runs.pop(int(token) if token.isdigit() else 0, (None, 0, None))
            if run is not None:
                run.answered(number, self._verdict(message))

    def _verdict(self, message: wire.Msg) -> Exception | None:
        where = f"nats-server {self._session.server}"
        if message.headers and headers.status(message.headers)[0] == 503:
            mapped = "where there is one of this subject, does the account map that to another (mappings)?"
            return NoPlace(f"{where}: no stream keeps what is published there; {mapped}")
        try:
            ack = _puback.decode(message.body)
        except UNREADABLE:
            ack = PubAck()
        if ack.error is not None and ack.error.err_code:
            return _refusal(ack.error, f"{where}: {ack.error.description} ({ack.error.err_code})")
        if ack.stream:
            return None
        words = f"{where}: a publish was answered with {message.body[:80]!r}, which is no answer of JetStream"
        return PublishError(f"{words}: who else answers what is published to this subject? {_UNKNOWN}", stored=None)

    def give_up(self, token: int) -> None:
        self._runs.pop(token, None)

    def refused(self, words: str) -> bool:
        """A publish that our user may not make: the server says so, and answers nothing."""
        mine = [(token, run, number) for token, (run, number, _) in self._runs.items() if f'"{run.subject(number)}"' in words]
        for token, run, number in mine:
            del self._runs[token]
            run.answered(number, PublishError(f"nats-server {self._session.server}: {words}", stored=False))
        return bool(mine)

    def lost(self, error: Exception) -> None:
        waiting, self._runs = list(self._runs.values()), {}
        for run, number, _ in waiting:
            get_hub().loop.run_callback(run.answered, number, InDoubt(f"{error}; {_UNKNOWN}"))


class PublishRun(Run[Command]):
    """Of messages that JetStream answers; their questions are the tokens of their inboxes."""

    def __init__(self, link: PublishLink, commands: Sequence[Command], timeout: float) -> None:
        super().__init__(commands, timeout)
        self._link = link

    def subject(self, number: int) -> str:
        return self._commands[number].subject.decode()

    def _give_up(self, question: int) -> None:
        self._link.give_up(question)

    def _fill(self) -> None:
        while self._next < len(self._commands) and len(self._under_way) < WINDOW:
            number, command = self._next, self._commands[self._next]
            self._next += 1
            if (obstacle := self._link.obstacle(command)) is not None:
                self._answers[number] = obstacle
                continue
            now = monotonic()
            command.first_sent = min(command.first_sent, now)
            self._under_way[number] = self._link.send(self, number, command), now

    def answered(self, number: int, outcome: Exception | None) -> None:
        """On the hub."""
        if self._over or number not in self._under_way:
            return
        del self._under_way[number]
        self._answers[number] = outcome
        if isinstance(outcome, InDoubt):
            self._commands[number].node = self._link.node
        if len(self._under_way) <= WINDOW // 2 and self._next < len(self._commands):
            self._fill()
        if len(self._answers) == len(self._commands):
            self._over = True
            self._waiter.switch(None)

    def _look_at(self, under_way: list[tuple[int, tuple[int, float]]], now: float) -> None:
        self._link.look(under_way[0][1][1])
        for number, (token, since) in under_way:
            if now - since >= self._timeout:
                words = f"nats-server {self._link.node} gave no answer for {self._timeout:.1f} s"
            elif now - since >= DOUBT and self._link.astray(token, self._commands[number]):
                words = "the server that it was sent to keeps its subject no more"
            else:
                continue
            self._link.give_up(token)
            self.answered(number, InDoubt(f"{words}; {_UNKNOWN}"))


def _refusal(error: Refusal, words: str) -> Exception:
    if error.err_code in _FULL:
        return Refused(words)
    if error.err_code == _TOO_LARGE:
        return MessageRefused(f"{words}: raise the stream's max_msg_size, or make the body smaller", stored=False)
    if error.err_code in _NO_SCHEDULES:
        return MessageRefused(f"{words}: a delay needs a stream with allow_msg_schedules", stored=False)
    if error.code == 503:
        return NotStored(words)
    return PublishError(words, stored=False)


def _refused_later(topic: str, words: str) -> MessageRefused:
    return MessageRefused(f"topic {topic!r}, delay: {words}", stored=False)
