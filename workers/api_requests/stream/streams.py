"""The job's three streams: what each does with a batch of its channel's lines, and how far each is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from framework import FrameworkError
from pyspark_nsq import Lag, lag
from workers.api_requests.collect.topics import CHANNELS
from workers.api_requests.detect.growth.counts import Growth
from workers.api_requests.detect.kept import Kept
from workers.api_requests.detect.spam.acts import EVIDENCE
from workers.api_requests.detect.spam.allowed import Allowed
from workers.api_requests.detect.spam.evidence import Evidence
from workers.api_requests.stream.archive import archive
from workers.api_requests.stream.checkpoint import Checkpoint
from workers.api_requests.stream.folders import CHECKPOINTS, TALLY, Folders, check_output
from workers.api_requests.stream.outbox import Sender
from workers.api_requests.stream.parse import observed, parse
from workers.api_requests.stream.session import Session
from workers.api_requests.stream.store import Store
from workers.api_requests.stream.tally import Tally

_LAST_WORDS = 5.0  # seconds for which a batch that was broken off may still talk to the JVM
_EVERY = {"archive": 30.0, "growth": 10.0, "spam": 10.0}  # seconds; archive: fewer, larger files

_COLUMNS = "value binary, message_id string, timestamp timestamp"
_MOST, _MOST_A_SECOND = 200_000, 20_000

Process = Callable[[DataFrame, int], dict[str, int]]


def most(every: float | None) -> int:
    """The lines of a batch at the most, so that the driver's memory does not grow with what waits. Where batches are seldom, as
    many as may come meanwhile: a next one begins no sooner."""
    return max(_MOST, round((every or 0) * _MOST_A_SECOND))


class Stopped(Exception):
    """Raised in a batch that a stop has broken off, in place of whatever came of that: the batch must run again.

    Spark has no way to tell it that this is no failure (docs/spark-upstream.md, 1), so `Session.be_quiet` comes before.
    """

    def __init__(self) -> None:
        super().__init__("the job was told to stop, and does this batch again when it is started")


class Stream:
    """One channel's stream: what it does with a batch, and how far it is.

    ``since``: it takes only lines that the queue took then or later, and leaves the spool to whoever reads it all.
    """

    def __init__(self, name: str, process: Process, folders: Folders, since: datetime | None = None) -> None:
        self.name = name
        self._since = since
        self.stopping = False
        self.tally = Tally(folders.state / TALLY / f"{name}.json")
        self._folders = folders
        self._process = process
        self._working = threading.Lock()
        self._spool = folders.spool / name
        self._checkpoint = Checkpoint(folders.state / CHECKPOINTS / name)
        self._done = self._checkpoint.last_done()

    def start(self, session: Session, every: float | None) -> StreamingQuery:
        """``every``: seconds between the starts of batches; None to do what is there, and end."""
        self._checkpoint.clear_halves()
        lines = session.spark.readStream.format(session.source_of(self.name))
        lines = lines.option("spoolDir", str(self._spool)).option("collector", "external")
        lines = lines.option("parallelism", session.parallelism).option("maxMessagesPerTrigger", most(every))
        if self._since is None:
            lines = lines.option("retention", "commit")
        else:
            lines = lines.option("retention", "keep").option("startingTimestamp", self._since.isoformat())
        stream = lines.schema(_COLUMNS).load().writeStream.queryName(self.name)
        stream = stream.option("checkpointLocation", str(self._checkpoint.folder)).trigger(
            **({"availableNow": True} if every is None else {"processingTime": f"{round(1000 * every)} milliseconds"})
        )
        return stream.foreachBatch(self._batch).start()

    def idle(self, seconds: float) -> bool:
        """Wait for up to ``seconds`` until no batch is worked on; whether none is."""
        idle = self._working.acquire(timeout=seconds)
        if idle:
            self._working.release()
        return idle

    def behind(self) -> Lag | None:
        """What its spool holds and it has not done; None where that cannot be told just now."""
        end = None if self._done is None else self._checkpoint.end_of(self._done)
        if self._done is not None and end is None:
            return None
        try:
            return lag(self._spool, end)
        except (OSError, FrameworkError):  # it is the query that says what ails the spool, and it may wait for it
            return None

    def _batch(self, rows: DataFrame, batch: int) -> None:
        with self._working:
            self._work(rows, batch)

    def _work(self, rows: DataFrame, batch: int) -> None:
        try:
            check_output(self._folders)
            if self._since is not None:  # some of before lie among those
                rows = rows.where(f.col("timestamp") >= f.lit(self._since))
            counts = self._process(rows, batch)
            check_output(self._folders)  # Spark would have begun it anew where it went meanwhile
        except Exception:
            if self.stopping:
                raise Stopped from None  # not swallowed: the batch must run again
            check_output(self._folders)  # which says more than what came of it
            raise
        self._done = batch
        if counts:
            self.tally.add(batch, counts)


class Job:
    """The three channels' streams in one session."""

    def __init__(
        self, session: Session, folders: Folders, sender: Sender, *, follows: bool,
        forget: int | None = None, allowed: Allowed | None = None, since: datetime | None = None,
    ) -> None:  # fmt: skip
        output = folders.output
        self._archived = Store(output, "archive", by="date")
        self._rejected = Store(output, "rejected")
        self._growth = Growth(Kept(folders.state / "hours"), folders.state / "growth.sqlite", output)
        for name in ("archive", "rejected", "growth", "spam"):
            output.make(name)  # there also when nothing comes
        self.sender = sender
        self.evidence = Evidence(
            session.fitted, Kept(folders.state / "evidence"), folders.state / "spam.sqlite", output, sender.put,
            forget=forget, allowed=allowed,
        )  # fmt: skip
        self._follows = follows
        self._folders = folders
        self._session = session
        works = (self._archive, self._count, self._suspect)
        self._streams = [Stream(name, work, folders, since) for name, work in zip(CHANNELS, works, strict=True)]

    def start(self, name: str, every: float | None, *, available_now: bool = False) -> StreamingQuery:
        """Start one stream, from its checkpoint. ``every``: seconds between the starts of batches; None for its own.

        ``available_now``: it does what is there, and ends.
        """
        stream = next(stream for stream in self._streams if stream.name == name)
        if available_now:
            return stream.start(self._session, None)
        return stream.start(self._session, _EVERY[name] if every is None else every)

    def stopping(self) -> None:
        """Tell the streams that what fails from now on fails because of a stop."""
        for stream in self._streams:
            stream.stopping = True
        self._session.be_quiet()

    def wait(self) -> None:
        """Once the queries are stopped: a batch that was broken off in the JVM goes on here until its next word with it, which
        must be there to answer. No longer than ``_LAST_WORDS`` for each stream."""
        for stream in self._streams:
            stream.idle(_LAST_WORDS)

    def done(self) -> dict[str, dict[str, int]]:
        return {stream.name: stream.tally.totals() for stream in self._streams}

    def late(self) -> int:
        """How many lines came when growth had called their hour complete. They are counted all the same."""
        return self._growth.late

    def behind(self) -> dict[str, Lag]:
        """By channel, where lines wait in the spool."""
        found = {stream.name: stream.behind() for stream in self._streams}
        return {name: one for name, one in found.items() if one is not None and one.rows}

    def check_output(self) -> None:
        """Raises Gone when what the streams wrote is not there any more."""
        check_output(self._folders)

    @property
    def judges_as_it_goes(self) -> bool:
        """Whether suspects are judged with each batch; else once, at the end."""
        return self._follows

    def least(self) -> int:
        """The lines that every channel has done."""
        return min(stream.tally.total() for stream in self._streams)

    def _archive(self, rows: DataFrame, batch: int) -> dict[str, int]:
        self._session.fit(rows.sparkSession)
        archived, rejected = archive(rows, batch, archived=self._archived, rejected=self._rejected)
        return _counts(archived, rejected)

    def _count(self, rows: DataFrame, batch: int) -> dict[str, int]:
        self._session.fit(rows.sparkSession)
        found, good = observed(parse(rows, why=False), "address", "time", "timestamp")
        self._growth.count(good, batch)
        return _counts(found.get["good"], found.get["bad"])

    def _suspect(self, rows: DataFrame, batch: int) -> dict[str, int]:
        self._session.fit(rows.sparkSession)
        found, good = observed(parse(rows, why=False), *EVIDENCE, "timestamp")
        self.evidence.collect(good, batch)
        counts = _counts(found.get["good"], found.get["bad"])
        if counts and self._follows:
            self.evidence.settle()
        return counts


def _counts(good: int, bad: int) -> dict[str, int]:
    return {"parsed": good, "rejected": bad} if good or bad else {}
