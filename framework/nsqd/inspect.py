"""``workers nsqd --inspect``: what lies in a data folder that nobody serves, for people, or as JSON. Nothing is changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from framework.nsqd.options import Options
from framework.nsqd.store import ChannelState, TopicState, unfinished
from framework.nsqd.store.survey import Survey


class SegmentFacts(msgspec.Struct):
    number: int
    size: int
    """Bytes."""
    topics: list[str]
    """Whose messages it has."""
    needed: bool
    """It has messages that are not finished."""


class ChannelFacts(msgspec.Struct):
    name: str
    paused: bool
    depth: int
    """Messages that could be delivered now."""
    deferred: int
    oldest: float | None
    """When the oldest that is not finished was published, in seconds since 1970; None: there is none."""


class TopicFacts(msgspec.Struct):
    name: str
    paused: bool
    depth: int
    """Messages that wait in the topic itself."""
    damaged: int
    """Messages that were lost by damage, and accounted for."""
    oldest: float | None
    channels: list[ChannelFacts]


class SetAside(msgspec.Struct):
    """A file in ``bad/``: damaged bytes, an index, a copy of a segment."""

    name: str
    size: int


class Facts(msgspec.Struct):
    folder: str
    segments: list[SegmentFacts]
    topics: list[TopicFacts]
    damage: list[str]
    """What a start would report, a sentence each."""
    bad: list[SetAside]


def look(survey: Survey) -> Facts:
    path, log, catalog = survey.folder.path, survey.log, survey.catalog
    segments = [
        SegmentFacts(
            number, log.length(number),
            sorted(topic.name for one in catalog.ranges_in(number) if (topic := catalog.topics.get(one))),
            unfinished.any_in(catalog, survey.index, number),
        )
        for number in log.numbers
    ]  # fmt: skip
    topics = [_topic(survey, one) for one in sorted(catalog.topics.values(), key=lambda one: one.name)]
    bad = [SetAside(one.name, one.stat().st_size) for one in sorted((path / "bad").glob("*"))]
    return Facts(str(path), segments, topics, survey.reports, bad)


def _topic(survey: Survey, topic: TopicState) -> TopicFacts:
    damaged = sum(high - low for low, high in survey.index.damaged(topic.id))
    channels = [_channel(survey, topic, one) for one in sorted(topic.channels.values(), key=lambda one: one.name)]
    oldest = _published(survey, topic.id, topic.pumped) if topic.depth else None
    return TopicFacts(topic.name, topic.paused, topic.depth, damaged, oldest, channels)


def _channel(survey: Survey, topic: TopicState, channel: ChannelState) -> ChannelFacts:
    now = survey.clock.now()
    deferred = sum(1 for one in channel.retries.values() if one.due > now)
    first = {min(channel.retries)} if channel.retries else set[int]()
    if channel.waiting:
        first.add(channel.cursor)
    times = [_published(survey, topic.id, seq) for seq in first]
    oldest = min((one for one in times if one is not None), default=None)
    return ChannelFacts(channel.name, channel.paused, channel.waiting + len(channel.retries) - deferred, deferred, oldest)


def _published(survey: Survey, topic: int, seq: int) -> float | None:
    found = survey.reader.read(topic, seq, 1)
    return found[0].ts / 1e9 if found else None


def as_text(facts: Facts) -> Iterator[str]:
    """Lines for people."""
    yield f"{facts.folder}: {len(facts.segments):,} segments, {len(facts.topics):,} topics"
    for segment in facts.segments:
        use = "needed" if segment.needed else "finished"
        yield f"  segment {segment.number}: {segment.size:,} bytes, {use}, topics: {', '.join(segment.topics) or 'none'}"
    for topic in facts.topics:
        damaged = f", {topic.damaged:,} lost by damage" if topic.damaged else ""
        yield f"  topic {topic.name}: {topic.depth:,} wait for a channel{_paused(topic)}{damaged}{_since(topic)}"
        for channel in topic.channels:
            counts = f"depth {channel.depth:,}, deferred {channel.deferred:,}"
            yield f"    channel {channel.name}: {counts}{_paused(channel)}{_since(channel)}"
    for report in facts.damage:
        yield f"  damage: {report}"
    for one in facts.bad:
        yield f"  in bad/: {one.name}, {one.size:,} bytes"


def _paused(what: TopicFacts | ChannelFacts) -> str:
    return ", paused" if what.paused else ""


def _since(what: TopicFacts | ChannelFacts) -> str:
    if what.oldest is None:
        return ""
    return f", oldest of {datetime.fromtimestamp(what.oldest, UTC):%Y-%m-%d %H:%M:%S} UTC"


class Inspect:
    """A daemon that looks once. ``run`` raises FolderInUse, FolderUnusable."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def stop(self) -> None:
        """It ends by itself, and soon."""

    def run(self) -> None:
        with Survey(self._options.data_path) as survey:
            facts = look(survey)
        if self._options.json:
            sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")
        else:
            sys.stdout.write("\n".join([*as_text(facts), ""]))
