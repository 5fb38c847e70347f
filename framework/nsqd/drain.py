"""``workers nsqd --drain-to``: moves what a data folder holds to another nsqd. Published first, finished here after.

So a kill at any moment loses nothing, and leaves at most TOGETHER messages in both places. Nothing is served meanwhile.

NSQ has no way to publish to one channel of a topic. Channels that are at different places get what is theirs all the same
where that is possible: the messages go in order, and a channel is made over there only when the first message comes that
it has not finished here.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import gevent
from gevent.pool import Pool

from framework.errors import BrokerError, FrameworkError
from framework.names import EPHEMERAL
from framework.nsqd import daemon
from framework.nsqd.contents import TopicContents, UnfinishedMessage, contents
from framework.nsqd.options import Options
from framework.nsqd.store import FolderUnusable, Store
from framework.transports.nsq import urls
from framework.transports.nsq.delays import MAX_DEFER
from framework.transports.nsq.http import Nsqd, TopicStats
from framework.transports.nsq.producer import NsqProducer

TOGETHER = 500
"""Messages published before they are finished here: what may be in both places after a kill."""
_BYTES = 4 << 20
_UNDER_WAY = 100
"""Deferred messages that are published at once, each by its own DPUB."""
_SAY_SECONDS = 2.0
_PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.01


class NotDrained(FrameworkError):
    """Something is still in the folder; the sentence says what to do."""


class Target:
    """The nsqd that takes the messages. Raises BrokerUnreachable, BrokerError, PublishError."""

    def __init__(self, url: str) -> None:
        read = urls.read([url])
        self.name = read.nsqds[0]
        self._api = Nsqd.of(self.name, read.options)
        self._api.ping()
        self.max_delay = min(self._config("max_req_timeout", round(MAX_DEFER * 1e9)) / 1e9, MAX_DEFER)
        self.max_size = self._config("max_msg_size", read.options.max_msg_size)
        max_body = self._config("max_body_size", read.options.max_body_size)
        self._producer = NsqProducer(
            lambda: {self.name}, replace(read.options, max_msg_size=self.max_size, max_body_size=max_body)
        )

    def _config(self, name: str, otherwise: int) -> int:
        try:
            return int(self._api.config(name))
        except BrokerError:  # an nsqd that is too old to say
            return otherwise

    def topic(self, name: str) -> TopicStats:
        """As it is there; without channels where there is no such topic. #ephemeral channels, which only watch, are left out."""
        every = self._api.stats(name, clients=False).topics or []
        topic = next((one for one in every if one.topic_name == name), TopicStats(name))
        topic.channels = [one for one in topic.channels if not one.channel_name.endswith(EPHEMERAL)]
        return topic

    def channels(self, topic: str) -> set[str]:
        return {one.channel_name for one in self.topic(topic).channels}

    def make(self, topic: str, channels: Iterable[str] = (), *, paused: Iterable[str] = ()) -> None:
        """Make them if they are not there; pause those of the channels that are in ``paused``."""
        self._api.create_topic(topic)
        for channel in sorted(channels):
            self._api.create_channel(topic, channel)
            if channel in paused:
                self._api.pause_channel(topic, channel)

    def pause(self, topic: str) -> None:
        self._api.pause_topic(topic)

    def publish(self, topic: str, messages: list[UnfinishedMessage]) -> None:
        """Return when it has answered OK for all."""
        now = time.time() * 1000
        deferred = [(one, min((one.due - now) / 1000, self.max_delay)) for one in messages if one.due > now]
        at_once = [one.body for one in messages if one.due <= now]
        if at_once:
            self._producer.publish(topic, at_once)
        list(Pool(_UNDER_WAY).imap_unordered(lambda one: self._producer.publish(topic, [one[0].body], delay=one[1]), deferred))

    def wait_until_handed_over(self, topic: str) -> None:
        """Return when its channels have all that was published to it. Raises NotDrained."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while (there := self.topic(topic)).depth and there.channels:
            if there.paused or time.monotonic() > until:
                why = "it is paused there: unpause it" if there.paused else "look at its log"
                raise NotDrained(f"{self.name} keeps messages of topic {topic!r} from its channels ({why}), then run this again")
            gevent.sleep(_POLL_SECONDS)

    def close(self) -> None:
        self._producer.close()


@dataclass
class Plan:
    """What moving one topic means, found out before anything is moved."""

    count: int = 0
    cut_short: int = 0
    """Of these, deferred for longer than the target takes: they come sooner there."""
    too_large: int = 0
    repeated: int = 0
    """Messages that channels would get once more."""
    repeated_for: set[str] = field(default_factory=set)
    largest: int = 0


def plan(topic: TopicContents, target: Target) -> Plan:
    """Go through the topic as ``Mover`` will, without moving."""
    found, there = Plan(), target.channels(topic.name)
    latest = (time.time() + target.max_delay) * 1000
    for message in topic.messages():
        there |= message.channels
        found.count += 1
        found.cut_short += message.due > latest
        found.too_large += len(message.body) > target.max_size
        found.largest = max(found.largest, len(message.body))
        if topic.channels and there != message.channels:
            found.repeated += 1
            found.repeated_for |= there - message.channels
    return found


class Drain:
    """A ``daemon.Daemon`` that ends when the folder is empty. Raises FolderInUse, FolderUnusable, BrokerUnreachable."""

    _said: float
    """When it last said how far it has come."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._log = daemon.Log(options)
        self._path = options.data_path
        if not (self._path / "meta.json").exists():
            raise FolderUnusable(f"{self._path} holds no messages of an nsqd: name its folder with --data-path")
        self._store = Store(self._path.resolve())
        self._stopping = False
        self.total = self.moved = 0
        try:
            self._target = Target(options.drain_to)
        except BaseException:
            self._store.close()
            raise

    def stop(self) -> None:
        """May be called from a signal handler: ends after what is under way."""
        self._stopping = True

    def run(self) -> None:
        """Move everything. Raises NotDrained, PublishError, BrokerUnreachable, BrokerError; then the rest is still here."""
        try:
            self._run()
        except (sqlite3.Error, OSError) as error:
            raise NotDrained(
                f"{self._path} cannot be read, or note what was moved ({error}): mend that, then run this again"
            ) from error
        finally:
            self._target.close()
            self._store.close()

    def _run(self) -> None:
        topics = contents(self._store)
        plans = {topic.name: plan(topic, self._target) for topic in topics}
        self._warn(topics)
        for topic in topics:
            self._refuse(topic, plans[topic.name])
        self.total, self._said = sum(one.count for one in plans.values()), time.monotonic()
        for topic in topics:
            Mover(self, topic, self._target, self._options.drain_all_channels).run()
        left = sum(1 for topic in contents(self._store) for _ in topic.messages())
        if left:
            raise NotDrained(f"{left} messages are still in {self._path}: run this again")
        self._store.sweep()
        channels = sum(len(topic.channels) for topic in topics)
        sys.stdout.write(
            f"moved {self.moved:,} messages, {len(topics):,} topics and {channels:,} channels to {self._target.name}; "
            f"no message is left in {self._path}\n"
        )

    def _warn(self, topics: list[TopicContents]) -> None:
        for report in self._store.reports:
            self._log("WARNING", f"DISK: {report}")
        unreadable = sum(topic.unreadable for topic in topics)
        if unreadable:
            self._log("WARNING", f"DRAIN: {unreadable} messages that were tried before are damaged on the disk: not moved")

    def _refuse(self, topic: TopicContents, found: Plan) -> None:
        if found.too_large:
            raise NotDrained(
                f"topic {topic.name!r}: {found.too_large} messages are larger than the {self._target.max_size} bytes that "
                f"{self._target.name} takes: start it with --max-msg-size={found.largest} or more; nothing was moved"
            )
        if found.repeated and not self._options.drain_all_channels:
            raise NotDrained(
                f"topic {topic.name!r}: {found.repeated} of {found.count} messages would go once more to a channel that has "
                f"finished them or never had them ({', '.join(sorted(found.repeated_for))}), as NSQ publishes to all channels: "
                "let workers finish what was begun, or add --drain-all-channels; nothing was moved"
            )
        if found.cut_short:
            self._log(
                "WARNING",
                f"DRAIN: topic {topic.name!r}: {found.cut_short} messages are deferred for longer than {self._target.name} takes "
                f"(--max-req-timeout): they will come after {self._target.max_delay:g} s",
            )

    def advance(self, count: int) -> None:
        """``count`` more are moved. Raises NotDrained when it was told to stop."""
        self.moved += count
        if time.monotonic() - self._said > _SAY_SECONDS:
            self._said = time.monotonic()
            self._log("INFO", f"DRAIN: {self.moved:,} of {self.total:,} messages are moved")
        if self._stopping:
            raise NotDrained(f"stopped: {self.moved} of {self.total} messages are moved; run this again for the others")


class Mover:
    """Moves one topic, oldest message first."""

    _made: set[str]
    """The channels that it has over there."""

    def __init__(self, drain: Drain, topic: TopicContents, target: Target, all_channels: bool) -> None:
        self._drain = drain
        self._topic = topic
        self._target = target
        self._all_channels = all_channels
        self._paused = False
        self._group: list[UnfinishedMessage] = []
        self._bytes = 0

    def run(self) -> None:
        self._begin()
        for message in self._topic.messages():
            self._make(message.channels)
            if message.in_topic and self._topic.paused and not self._paused:
                self._pause()
            self._group.append(message)
            self._bytes += len(message.body)
            if len(self._group) >= TOGETHER or self._bytes >= _BYTES:
                self._flush()
        self._flush()
        self._make(self._topic.channels)
        if self._topic.paused and not self._paused:
            self._pause()

    def _begin(self) -> None:
        """An nsqd gives a new topic the channels that its nsqlookupds know."""
        before = self._target.channels(self._topic.name)
        self._target.make(self._topic.name)
        found = self._target.channels(self._topic.name) - before
        if found and not self._all_channels:
            raise NotDrained(
                f"topic {self._topic.name!r}: {self._target.name} gave it the channels {', '.join(sorted(found))}, which its "
                "nsqlookupds know: run this again, to see whether they would get messages that they have finished"
            )
        self._made = (before | found).intersection(self._topic.channels)
        self._target.make(self._topic.name, self._made, paused=self._topic.paused_channels)

    def _make(self, channels: Iterable[str]) -> None:
        """Channels that shall have what comes now, and nothing of what came before."""
        new = set(channels) - self._made
        if new:
            self._flush()
            self._target.wait_until_handed_over(self._topic.name)
            self._target.make(self._topic.name, new, paused=self._topic.paused_channels)
            self._made |= new

    def _pause(self) -> None:
        """What comes now waits in the topic; what came before is its channels'."""
        self._make(self._topic.channels)
        self._flush()
        if not self._target.topic(self._topic.name).paused:  # it is when an earlier run came as far as this
            self._target.wait_until_handed_over(self._topic.name)
            self._target.pause(self._topic.name)
        self._paused = True

    def _flush(self) -> None:
        """Publish first, finish after."""
        if not self._group:
            return
        self._target.publish(self._topic.name, self._group)
        self._topic.moved(self._group[-1].seq)
        count, self._group, self._bytes = len(self._group), [], 0
        self._drain.advance(count)
