"""The Spark job: three streams from the spools of the channels archive, growth and spam to Parquet and to suspects.

    python -m workers.api_requests.job --follow             until a signal; the Procfile's line
    python -m workers.api_requests.job --until 16275        until every channel has done that many lines

It goes on where it stopped: the state folder holds Spark's checkpoints and everything that is counted.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from framework import FrameworkError, Publisher, WrongUse
from workers.api_requests import growth, session
from workers.api_requests.archive import archive
from workers.api_requests.children import descendants, kill
from workers.api_requests.handlers import CHANNELS, SUSPECTS_TOPIC
from workers.api_requests.outbox import Outbox, Sender
from workers.api_requests.parse import parse, rejects, requests
from workers.api_requests.queries import Failed, Queries, words_of
from workers.api_requests.store import Store
from workers.api_requests.suspects import Bench
from workers.api_requests.tally import Tally

_POLL = 0.2  # seconds
_GRACE = 3.0  # seconds from a signal to the end
_LAST_WORDS = 5.0  # seconds for which a batch that was broken off may still talk to the JVM
_PATIENCE = 60.0  # seconds without a new line before --until gives up
_EVERY = {"archive": 30.0, "growth": 10.0, "spam": 10.0}  # seconds; archive: fewer, larger files

Process = Callable[[DataFrame, int], dict[str, int]]


class Stopped(Exception):
    """Raised in a batch that a stop has broken off, in words by which Spark knows that it is no failure.

    Spark looks for them with a regular expression that overflows the JVM's stack on a long message, such as that of the
    error that really came up (StreamExecution.isInterruptionException).
    """

    def __init__(self) -> None:
        super().__init__("py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException")


@dataclass(frozen=True, slots=True)
class Places:
    """The job's folders."""

    spool: Path
    output: Path
    state: Path


class Channel:
    """One stream: what it does with a batch, and how far it is."""

    def __init__(self, name: str, process: Process, places: Places) -> None:
        self.name = name
        self.stopping = False
        self.tally = Tally(places.state / "tally" / f"{name}.json")
        self._process = process
        self._working = threading.Lock()
        self._spool = places.spool / name
        self._checkpoint = places.state / "checkpoints" / name

    def start(self, spark: SparkSession, every: float) -> StreamingQuery:
        lines = spark.readStream.format("nsq").option("spoolDir", str(self._spool)).option("collector", "external")
        stream = lines.option("retention", "commit").load().writeStream.queryName(self.name)
        stream = stream.option("checkpointLocation", str(self._checkpoint)).trigger(processingTime=f"{every:g} seconds")
        return stream.foreachBatch(self._batch).start()

    def idle(self, seconds: float) -> bool:
        """Wait for up to ``seconds`` until no batch is worked on; whether none is."""
        idle = self._working.acquire(timeout=seconds)
        if idle:
            self._working.release()
        return idle

    def _batch(self, rows: DataFrame, batch: int) -> None:
        with self._working:
            self._work(rows, batch)

    def _work(self, rows: DataFrame, batch: int) -> None:
        try:
            counts = self._process(rows, batch)
        except Exception:
            if self.stopping:
                raise Stopped from None  # not swallowed: the batch must run again
            raise
        if counts:
            self.tally.add(batch, counts)


class Job:
    """The three channels in one session."""

    def __init__(self, spark: SparkSession, places: Places, sender: Sender, *, follows: bool) -> None:
        scratch = places.state / "scratch"
        self._archived = Store(places.output / "archive", scratch, by="date")
        self._rejected = Store(places.output / "rejected", scratch)
        self._hours = Store(places.state / "hours", scratch)
        self._growth = places.output / "growth"
        for name in ("archive", "rejected", "growth", "spam"):
            (places.output / name).mkdir(parents=True, exist_ok=True)  # there also when nothing comes
        self.sender = sender
        self.bench = Bench(spark, Store(places.state / "evidence", scratch), places.output / "spam", sender.put)
        self._follows = follows
        self._spark = spark
        works = (self._archive, self._count, self._suspect)
        self.channels = [Channel(name, work, places) for name, work in zip(CHANNELS, works, strict=True)]

    def start(self, name: str, every: float | None) -> StreamingQuery:
        """Start one channel's stream, from its checkpoint. ``every``: seconds between the starts of batches; None for its own."""
        channel = next(channel for channel in self.channels if channel.name == name)
        return channel.start(self._spark, _EVERY[name] if every is None else every)

    def stopping(self) -> None:
        """Tell the channels that what fails from now on fails because of a stop."""
        for channel in self.channels:
            channel.stopping = True

    def wait(self) -> None:
        """Once the queries are stopped: a batch that was broken off in the JVM goes on here until its next word with it, which
        must be there to answer. No longer than ``_LAST_WORDS`` for each channel."""
        for channel in self.channels:
            channel.idle(_LAST_WORDS)

    def done(self) -> dict[str, dict[str, int]]:
        return {channel.name: channel.tally.totals() for channel in self.channels}

    def least(self) -> int:
        """The lines that every channel has done."""
        return min(channel.tally.total() for channel in self.channels)

    def _archive(self, rows: DataFrame, batch: int) -> dict[str, int]:
        archived, rejected = archive(rows, batch, archived=self._archived, rejected=self._rejected)
        if self._follows:
            self._archived.tidy(batch, until=str(datetime.now(UTC).date()))
        return _counts(archived, rejected)

    def _count(self, rows: DataFrame, batch: int) -> dict[str, int]:
        parsed = parse(rows).drop("value", "raw").persist()
        counts = _counts(requests(parsed).count(), rejects(parsed).count())
        if counts:
            growth.count(requests(parsed), batch, state=self._hours, output=self._growth)
        parsed.unpersist()
        return counts

    def _suspect(self, rows: DataFrame, batch: int) -> dict[str, int]:
        parsed = parse(rows).drop("value", "raw").persist()
        counts = _counts(self.bench.collect(requests(parsed), batch), rejects(parsed).count())
        parsed.unpersist()
        if counts and self._follows:
            self.bench.judge()
            self.bench.merge(batch)
        return counts


def _counts(good: int, bad: int) -> dict[str, int]:
    return {"parsed": good, "rejected": bad} if good or bad else {}


class Stopping:
    """SIGTERM and SIGINT ask for the end; what has not ended by itself after a moment is left as it is.

    That loses nothing: a batch that is broken off runs again, as after a kill -9. A JVM on a busy machine may take
    longer to come down than process managers wait (honcho: 5 s).
    """

    def __init__(self) -> None:
        self.asked = False  # no Event: a signal may come while its lock is held, and would wait for ever
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        if not self.asked:
            self.asked = True
            last = threading.Timer(_GRACE, self._leave)
            last.daemon = True
            last.start()

    def _leave(self) -> None:
        kill(descendants(os.getpid()))
        os._exit(0)


class Watch:
    """Waits for the queries, tells how far they are, and sees when one ends or a signal comes."""

    def __init__(self, job: Job, tell: Callable[..., None], stopping: Stopping) -> None:
        self._job = job
        self._tell = tell
        self._told: dict[str, dict[str, int]] = {}
        self._stopping = stopping
        self._moved = time.monotonic()

    @property
    def asked(self) -> bool:
        """Whether a signal asked for the end."""
        return self._stopping.asked

    def until(self, queries: Queries, finished: Callable[[], bool], patience: float | None) -> bool:
        """Whether ``finished`` came before a signal.

        Raises Failed when a query ends, or nothing moves for ``patience`` seconds.
        """
        while not self._stopping.asked:
            self._report()
            if finished():
                return True
            queries.revive()
            if any(query.status["isDataAvailable"] for query in queries.running()):
                self._moved = time.monotonic()
            if patience is not None and time.monotonic() - self._moved > patience:
                raise Failed(f"nothing has arrived for {patience:.0f} s: the channels have done {self._job.done()}")
            time.sleep(_POLL)
        return False

    def _report(self) -> None:
        done = self._job.done()
        if done != self._told:
            self._told, self._moved = done, time.monotonic()
            self._tell("lines", done=done)


def _target(until: int | None, summary: Path | None) -> int | None:
    """How many lines there will be; None while it is not known."""
    if summary is None:
        return until
    try:
        return int(json.loads(summary.read_text())["published"])
    except (OSError, ValueError, KeyError):
        return None


def run(job: Job, watch: Watch, target: Callable[[], int | None] | None, every: float | None) -> None:
    """The whole job in a session that is up, until it is done or a signal comes. Raises Failed."""
    queries = Queries(lambda name: job.start(name, every))
    try:
        if target is None:
            watch.until(queries, lambda: False, None)
            return
        if not watch.until(queries, lambda: (wanted := target()) is not None and job.least() >= wanted, _PATIENCE):
            return
    finally:
        job.stopping()
        queries.stop()
        job.wait()
    job.bench.judge()
    if not job.sender.flush(_PATIENCE, lambda: watch.asked) and not watch.asked:
        raise Failed(f"suspects wait to be published, and the next run will try again: {job.sender.trouble}")


def _lock(state: Path) -> int:
    state.mkdir(parents=True, exist_ok=True)
    handle = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise WrongUse(f"--state {state}: another job works in this folder; stop it, or name another folder") from None
    return handle


def _teller(events: bool) -> Callable[..., None]:
    """Tells what happens on stdout: as JSON for a program, else in words."""

    def tell(event: str, **more: Any) -> None:
        if events:
            click.echo(json.dumps({"event": event, **more}))
        elif event == "lines":
            words = (f"{name} {sum(counts.values()):,}" for name, counts in more["done"].items())
            click.echo(f"job: lines done: {', '.join(words)}")
        else:
            click.echo(f"job: {event} {' '.join(f'{k}={v}' for k, v in more.items())}".rstrip())
        sys.stdout.flush()

    return tell


class _Folder(click.Path):
    """A folder, there or to be made; of a URL there would be made one with a name like ``s3:``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if _URL.match(str(value)):
            self.fail(f"{value} is a URL: name a folder of a mounted file system", param, ctx)
        return super().convert(value, param, ctx)


_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")
_FOLDER = _Folder(file_okay=False, path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--follow", is_flag=True, help="Go on until SIGTERM or SIGINT.")
@click.option("--until", type=click.IntRange(min=0), metavar="N", help="End when every channel has done N lines.")
@click.option("--until-summary", type=click.Path(path_type=Path), metavar="FILE",
              help="Like --until, with the count that `workers publish --summary FILE` writes when it ends.")  # fmt: skip
@click.option(
    "--spool",
    type=_FOLDER,
    envvar="API_REQUESTS_SPOOL",
    default="var/spool",
    show_default=True,
    help="What the handlers land in.",
)
@click.option(
    "--output",
    type=_FOLDER,
    envvar="API_REQUESTS_OUTPUT",
    default="var/api_requests",
    show_default=True,
    help="archive, rejected, growth, spam.",
)
@click.option(
    "--state", type=_FOLDER, envvar="API_REQUESTS_STATE", default="var/job", show_default=True, help="Checkpoints and counts."
)
@click.option("--broker", "brokers", multiple=True, envvar="BROKER_URL", default=["nsq://127.0.0.1:4150"], show_default=True,
              metavar="URL", help="Where the suspects are published.")  # fmt: skip
@click.option("--every", type=click.FloatRange(min=0), envvar="API_REQUESTS_EVERY", metavar="SECONDS",
              help="With --follow, how often a batch starts; 10, and 30 for the archive's larger files.")  # fmt: skip
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="Where the JVM's messages go; stderr.")
@click.option("--events", is_flag=True, help="Tell what happens as JSON, a line each.")
def command(**options: Any) -> int:
    """Archive the API requests that the handlers land, count growth, and find suspects."""
    follow, until, summary = options["follow"], options["until"], options["until_summary"]
    if follow + (until is not None) + (summary is not None) != 1:
        raise WrongUse("say one of --follow, --until N and --until-summary FILE")
    publisher = Publisher(options["brokers"])  # which connects to nothing, and says what is wrong with a URL
    places = Places(*(options[name].absolute() for name in ("spool", "output", "state")))
    held = _lock(places.state)
    tell = _teller(options["events"])
    stopping = Stopping()
    tell("starting")
    spark = session.start(
        "api_requests", places.state / "scratch", master=options["master"], short=not follow, log=options["log"]
    )
    sender = Sender(Outbox(places.state / "outbox.sqlite"), publisher, SUSPECTS_TOPIC, _warn)
    try:
        tell("ready")
        sender.start()
        job = Job(spark, places, sender, follows=follow)
        watch = Watch(job, tell, stopping)
        target = None if follow else partial(_target, until, summary)
        run(job, watch, target, options["every"] if follow else 0.0)
        tell("done", suspects=len(job.bench.known()))
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise Failed(words_of(error)) from None  # in words as long as there is a JVM to ask for them
    finally:
        sender.stop()
        session.stop(spark)
        os.close(held)
    return 0


def _warn(words: str) -> None:
    click.echo(f"job: {words}", err=True)


def main() -> int:
    """The exit code: 0 done or stopped, 1 the job failed, 2 wrong use."""
    try:
        return int(command(standalone_mode=False) or 0)
    except click.ClickException as error:
        _warn(error.format_message())
        return 2
    except WrongUse as error:
        _warn(str(error))
        return 2
    except (Failed, FrameworkError, PySparkException) as error:
        _warn(words_of(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
