"""Dead letters over HTTP: counted, looked at, replayed and purged as ``workers dead`` does it. None is held between requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from framework.admin.latest import Latest
from framework.admin.requests import Answer, Refused, Request, as_json, read, tell
from framework.deadletters import (
    CHANNEL,
    DeadTopic,
    Letter,
    Replay,
    Selection,
    Sweep,
    as_dict,
    find,
    meant,
    moment,
    topic_of,
)
from framework.decoding import prepared
from framework.errors import FrameworkError, WrongUse
from framework.middleware.dead_letter import topic_name
from framework.transports.contract import Transport

SHOWN = 50
"""Letters of a look, unless it asks for fewer or more."""
MOST = 1000
BODY = 65_536
"""Characters of a body, and of a traceback, that are shown."""


@prepared
class Chosen(msgspec.Struct, forbid_unknown_fields=True):
    """Which letters, and what to do with them: the body of a replay or a purge, and the query of a look."""

    name: str
    """``topic/channel``, or the dead letter topic."""
    ids: tuple[str, ...] = ()
    reason: str = ""
    since: str = ""
    before: str = ""
    limit: int | None = None
    channel: str = CHANNEL
    to: str = ""
    all_channels: bool = False
    all: bool = False
    """A purge without a filter means it."""
    bodies: bool = False
    dry_run: bool = False

    def selection(self) -> Selection:
        """Raises Refused."""
        if self.limit is not None and self.limit < 1:
            raise Refused(400, f"limit={self.limit} is not 1 or more")
        return Selection(frozenset(self.ids), self.reason, _time("since", self.since), _time("before", self.before), self.limit)


@dataclass
class Done:
    """What has become of letters so far."""

    count: int = 0
    failed: int = 0
    letters: int = 0
    """That there were."""
    why: str = ""
    to: set[str] = field(default_factory=set)

    def kept(self, chosen: Chosen) -> dict[str, Any]:
        return {"kept": self.letters - (0 if chosen.dry_run else self.count + self.failed), "dry_run": chosen.dry_run}


class Letters:
    """Those on the brokers of ``transports()``. One look, replay or purge at a time: each holds what others would miss."""

    def __init__(self, transports: Callable[[], Sequence[Transport]], latest: Latest) -> None:
        self._transports = transports
        self._latest = latest
        self._doing = ""
        self.paths: dict[str, Callable[[Request], Answer]] = {"/api/dead": self._count, "/api/dead/letters": self._look}
        self.changes: dict[str, Callable[[Request], Answer]] = {"/api/dead/replay": self._replay, "/api/dead/purge": self._purge}

    def _count(self, _: Request) -> Answer:
        """How many letters each topic has; those of this worker's handlers also where there are none."""
        owners = {topic_name(row["topic"], row["channel"]): row["handler"] for row in self._latest()["handlers"]}
        with _refusing():
            found = find(self._transports())
        rows = {name: {"dead_topic": name, "handler": handler, "letters": 0} for name, handler in owners.items()}
        for topic in found:
            row = rows.setdefault(topic.name, {"dead_topic": topic.name, "handler": None, "letters": 0})
            row |= {"letters": row["letters"] + topic.count, "channel": topic.channel}
        return as_json(sorted(rows.values(), key=lambda row: (-row["letters"], row["dead_topic"])))

    def _look(self, request: Request) -> Answer:
        query: dict[str, Any] = dict(request.query)
        if "id" in query:
            query["ids"] = query.pop("id").split(",")
        chosen = _chosen({"limit": str(SHOWN), **query}, strict=False)
        if chosen.limit is None or chosen.limit > MOST:
            raise Refused(400, f"limit: no more than {MOST} letters at a time")
        selection, rows, cut = chosen.selection(), [], []
        with self._alone("look at dead letters"), _refusing():
            for topic in self._topics(chosen):
                with Sweep(topic) as sweep:
                    rows += [_row(letter, topic.name, bodies=chosen.bodies) for letter in sweep.chosen(selection)]
                cut += [sweep.cut_short] if sweep.cut_short else []
        return as_json({"letters": rows[: chosen.limit], "cut_short": "; ".join(cut)})

    def _replay(self, request: Request) -> Answer:
        chosen = _chosen(read(request))
        selection, done = chosen.selection(), Done()
        with self._alone("replay"), self._telling(request, chosen, "replayed", done), _refusing(done):
            for topic in self._topics(chosen):
                with Sweep(topic) as sweep:
                    replay = Replay(sweep, to=chosen.to, all_channels=chosen.all_channels)
                    letters = sweep.chosen(selection)
                    if chosen.dry_run:
                        done.count += sum(bool(replay.target(letter)) for letter in letters)
                    before = done.count
                    for count in () if chosen.dry_run else replay.run(letters):
                        done.count = before + count
                done.failed += replay.failed
                done.to |= replay.targets
                done.why = done.why or replay.why_failed or sweep.cut_short
                done.letters += topic.count
        rest = {"failed": done.failed, "why": done.why, "to": sorted(done.to)}
        return as_json({"replayed": done.count, **rest, **done.kept(chosen)})

    def _purge(self, request: Request) -> Answer:
        chosen = _chosen(read(request))
        selection, done = chosen.selection(), Done()
        if selection == Selection() and not (chosen.all or chosen.dry_run):
            raise Refused(400, 'what is purged is gone for good: choose letters, or say "all": true')
        with self._alone("purge"), self._telling(request, chosen, "purged", done), _refusing(done):
            for topic in self._topics(chosen):
                with Sweep(topic) as sweep:
                    for letter in sweep.chosen(selection):
                        done.count += 1
                        if not chosen.dry_run:
                            sweep.take(letter)
                done.count -= sweep.left_behind
                done.why = done.why or sweep.cut_short
                done.letters += topic.count
        return as_json({"purged": done.count, "why": done.why, **done.kept(chosen)})

    def _topics(self, chosen: Chosen) -> list[DeadTopic]:
        there = find(self._transports(), [topic_of(chosen.name)], channel=chosen.channel)
        for topic in there:
            if topic.channel != chosen.channel and topic.count:
                words = f'the letters of {topic.name} are in its channel {topic.channel!r}: say "channel": "{topic.channel}"'
                raise Refused(409, words)
        return [meant(topic, [chosen.name]) for topic in there]

    @contextmanager
    def _telling(self, request: Request, chosen: Chosen, verb: str, done: Done) -> Iterator[None]:
        """Also when it ends in the middle."""
        try:
            yield
        finally:
            if not chosen.dry_run:
                to = f" to {', '.join(sorted(done.to))}" if done.to else ""
                tell(request, f"{verb} {done.count} dead letters of {chosen.name}{to}")

    @contextmanager
    def _alone(self, doing: str) -> Iterator[None]:
        if self._doing:
            raise Refused(409, f"a {self._doing} is under way: try again when it is done")
        self._doing = doing
        try:
            yield
        finally:
            self._doing = ""


def _row(letter: Letter, dead_topic: str, *, bodies: bool) -> dict[str, Any]:
    """Bodies only when they are asked for: a list of letters is looked at by many who need none."""
    row = {**as_dict(letter, dead_topic), "size": len(letter.body)}
    row["traceback"] = row["traceback"][-BODY:]
    for name in ("body", "body_base64"):
        if name in row and not bodies:
            del row[name]
        elif len(row.get(name, "")) > BODY:
            row |= {name: row[name][:BODY], "cut": True}
    return row


def _chosen(given: object, *, strict: bool = True) -> Chosen:
    """Raises Refused. Where it is not ``strict``, numbers and true and false may be written as text."""
    try:
        return msgspec.convert(given, Chosen, strict=strict)
    except msgspec.ValidationError as error:
        raise Refused(400, f"{error}: it takes {', '.join(Chosen.__struct_fields__)}") from None


def _time(name: str, text: str) -> Any:
    try:
        return moment(text) if text else None
    except ValueError as error:
        raise Refused(400, f"{name}: {text!r} {error}") from None


@contextmanager
def _refusing(done: Done | None = None) -> Iterator[None]:
    """What brokers cannot do, or do not answer, is told in its own words, and what was done before."""
    try:
        yield
    except WrongUse as error:
        raise Refused(400, str(error).replace("add --all-channels", 'say "all_channels": true').replace("--to", '"to"')) from None
    except FrameworkError as error:
        raise Refused(502, f"{error}; {done.count} were done before" if done and done.count else str(error)) from None
