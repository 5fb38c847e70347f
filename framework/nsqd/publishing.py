"""What one client publishes: gathered until it has to be waited for, stored in one commit, and confirmed."""

from __future__ import annotations

from collections.abc import Callable

from framework.nsqd.bodies import Refused
from framework.nsqd.broker import Broker
from framework.nsqd.journal import NotStored
from framework.nsqd.payloads import Payload
from framework.nsqd.store import Entry
from framework.nsqd.streams import Outgoing
from framework.nsqd.topic import Topic
from framework.transports.nsq.wire import FRAME_RESPONSE, OK, encode_frame

_OK = encode_frame(FRAME_RESPONSE, OK)
_MOST_AT_ONCE = 2000
"""Publishes of one client in one commit; a thousand times as many can lie behind a few bytes that were compressed."""
_MOST_PAYLOADS = 200
"""Those of them that were not joined: each is work of its own for the commit, and other publishers wait for it to end."""


class Publishing:
    """The publishes of one client that have no answer yet."""

    def __init__(self, broker: Broker, settle: Callable[[], None], outgoing: Outgoing) -> None:
        """``settle`` commits and does what else is due before the client is waited for."""
        self.counts: dict[str, int] = {}
        """Messages published, by topic."""
        self._broker = broker
        self._settle = settle
        self._outgoing = outgoing
        self._entries: list[tuple[Topic, Entry]] = []
        self._unanswered = 0
        """The publishes in them."""
        self._command = ""

    def add(self, command: str, topic_name: str, what: list[Payload], due: int = 0, *, publishes: int = 1) -> None:
        """Publish with the next commit; the OK follows it. Raises Refused: an earlier one could not be stored."""
        if self._entries and (
            self._command != command or self._unanswered >= _MOST_AT_ONCE or len(self._entries) >= _MOST_PAYLOADS
        ):
            self._settle()
        self._command = command
        topic = self._broker.topic(topic_name)
        self._entries += [(topic, Entry(topic.id, payload, count, due)) for payload, count in what]
        self._unanswered += publishes

    def commit(self) -> None:
        """Return when all of it is stored and confirmed; blocks the greenlet. Raises Refused."""
        if not self._entries:
            return
        entries, self._entries = self._entries, []
        answers, self._unanswered = self._unanswered, 0
        try:
            group = self._broker.publish(entries)
            if group is not None:
                group.wait()
        except NotStored as error:
            raise Refused(f"E_{self._command}_FAILED", f"{self._command} failed {error}") from error
        for topic, entry in entries:
            self.counts[topic.name] = self.counts.get(topic.name, 0) + entry.count
        self._outgoing.write([_OK * answers])
