"""The whole pipeline from one command: a log through the broker, three channels and Spark into a report.

    python -m workers.api_requests.demo [--input PATH] [--broker URL] [--output var/demo]

Every part is a process of its own, as in a deployment; this module starts them in order, shows how far they are, and
sees to it that none is left. It parses nothing and counts nothing itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from framework import Publisher, WrongUse
from workers.api_requests import folder
from workers.api_requests.blocklist import BlockList
from workers.api_requests.children import Child, ChildDied, Children, python
from workers.api_requests.display import Display, display
from workers.api_requests.sniff import check_input

INPUT = "data/erddap_access_2024-05.log.gz"
OUTPUT = "var/demo"
TOPIC = "api_requests"
_START_SECONDS = 40.0
_QUIET_SECONDS = 1.5
_BLOCKLIST_SECONDS = 60.0
_INCOMPLETE = 4  # of `workers publish`: some lines were refused, the rest is published
_CHANNELS = ("archive", "growth", "spam")
_NO_FAN_OUT = "beanstalkd://"  # its publisher makes the copies for the channels


class Interrupted(Exception):
    """A signal asked for the end."""


class Wrong(Exception):
    """The run failed; the words are for the terminal, ``code`` for the shell."""

    def __init__(self, words: str, code: int = 1) -> None:
        super().__init__(words)
        self.code = code


class Signals:
    """Turns SIGINT, SIGTERM and SIGHUP into a flag: everything here waits in short steps and looks at it."""

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.came = True

    def check(self) -> None:
        if self.came:
            raise Interrupted


class Clock:
    """When each phase began and ended, in seconds from the start."""

    def __init__(self) -> None:
        self._zero = time.monotonic()
        self.phases: dict[str, tuple[float, float]] = {}

    def now(self) -> float:
        return time.monotonic() - self._zero

    def note(self, phase: str, since: float) -> float:
        """The phase ends now; returns its seconds."""
        self.phases[phase] = (since, self.now())
        return self.now() - since


class Demo:
    """One run."""

    def __init__(self, source: Path, output: Path, broker: str | None, signals: Signals, shown: Display) -> None:
        self._source = source
        self._output = output
        self._work = output / folder.WORK
        self._broker = broker
        self._check = signals.check
        self._shown = shown
        self._clock = Clock()
        self._children = Children(signals.check)
        self._notes: list[str] = []
        self._job: Child | None = None
        self._blocklist = BlockList(output / "blocklist.sqlite")

    def run(self) -> dict[str, Any]:
        """Everything, in order; returns the summary. Raises Interrupted, ChildDied, Wrong; nothing is left running."""
        try:
            broker = self._broker or self._start_nsqd()
            self._start_job(broker)
            if self._broker:
                self._set_leftovers_aside(broker)
            workers = self._start_workers(broker, self._work / "spool", "workers")
            published = self._publish(broker)
            self._follow_job(published["published"])
            self._wait_for_blocklist()
            ledger = self._end_workers(workers)
        finally:
            try:
                self._shown.say("stopping all processes")  # which fails where nobody reads it any more
            finally:
                self._children.end_all()
        return self._report(published, ledger)

    @contextmanager
    def _phase(self, name: str, total: int | None = None) -> Iterator[None]:
        self._check()
        since = self._clock.now()
        self._shown.begin(name, total)
        yield
        self._clock.note(name, since)

    def _start(self, name: str, *command: str, log: str = "", **environ: str) -> Child:
        return self._children.start(Child(name, python(*command), self._work / f"{log or name}.log", environ=environ))

    def _start_nsqd(self) -> str:
        """Returns the URL of an nsqd of our own, on free ports."""
        with self._phase("broker"):
            data = self._work / "nsqd"
            data.mkdir()
            addresses = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
            nsqd = self._start("nsqd", "-m", "framework.cli", "nsqd", f"--data-path={data}", *addresses)
            address = self._said(nsqd, lambda line: line.partition("TCP: listening on ")[2])
            self._shown.end("broker", f"embedded nsqd on {address}")
        return f"nsq://{address}"

    def _said(self, child: Child, find: Callable[[str], str]) -> str:
        """What ``find`` finds in the first line that has it."""
        if not self._children.wait(lambda: any(map(find, child.said())), within=_START_SECONDS):
            raise Wrong(
                f"{child.name} did not start within {_START_SECONDS:.0f} s: {child.last_words()} (all of it: {child.log})"
            )
        return next(filter(None, map(find, child.said()))).strip()

    def _start_job(self, broker: str) -> None:
        """As early as can be: the JVM takes longest to start."""
        self._job = self._start(
            "job", "-m", "workers.api_requests.job", "--events", f"--until-summary={self._work / 'published.json'}",
            f"--spool={self._work / 'spool'}", f"--output={self._output}", f"--state={self._work / 'state'}",
            f"--log={self._work / 'spark.log'}", f"--broker={broker}",
        )  # fmt: skip
        self._job_started = self._clock.now()

    def _start_workers(self, broker: str, spool: Path, name: str) -> Child:
        """Returns when every channel is subscribed: NSQ copies a message to the channels that there are."""
        with self._phase(name):
            blocklist = self._output / "blocklist.sqlite" if name == "workers" else spool / "blocklist.sqlite"
            workers = self._start(
                name, "-m", "framework.cli", "run", "workers.api_requests.handlers", f"--broker={broker}",
                f"--ledger={self._work / name}.json", "--connect-deadline=10s",
                API_REQUESTS_SPOOL=str(spool), API_REQUESTS_BLOCKLIST=str(blocklist),
            )  # fmt: skip
            self._said(workers, lambda line: "ready" if line.endswith(" ready") else "")
            self._shown.end(name, "subscribed to archive, growth, spam and blocklist")
        return workers

    def _set_leftovers_aside(self, broker: str) -> None:
        """What an interrupted run left in the channels of a broker that is not ours must not be counted."""
        spool = self._work / "leftover"
        workers = self._start_workers(broker, spool, "leftovers")
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < _QUIET_SECONDS:
            self._children.wait(lambda: False, within=0.1)
            size = sum(path.stat().st_size for path in spool.rglob("*") if path.is_file()) if spool.exists() else 0
            if size != seen:
                seen, since = size, time.monotonic()
        ledger = self._end_workers(workers)
        found = max((ends["finished"] for ends in ledger.values()), default=0)
        self._shown.end("leftovers", f"{found:,} messages of an earlier run set aside" if found else "none")
        if found:
            self._notes.append(
                f"{found:,} messages of an earlier run were in the channels; they were set aside and are not counted."
            )

    def _publish(self, broker: str) -> dict[str, int]:
        summary = self._work / "published.json"
        with self._phase("publish"):
            feed = self._start("publish", "-m", "framework.cli", "publish", TOPIC, str(self._source), f"--broker={broker}",
                               f"--summary={summary}.part")  # fmt: skip
            self._children.wait(lambda: self._show_published(feed) is not None, but=feed)
            code = self._children.end(feed)
            if code not in (0, _INCOMPLETE):
                raise Wrong(feed.last_words().removeprefix("workers: "), code)
            published: dict[str, int] = json.loads(Path(f"{summary}.part").read_text())
            os.replace(f"{summary}.part", summary)  # the job waits for it, and must not see half of it
            self._shown.end("publish", f"{published['published']:,} of {published['input_lines']:,} lines")
        self._notes += [line.removeprefix("workers: ") for line in feed.said() if line.startswith("workers: ")]
        return published

    def _show_published(self, feed: Child) -> int | None:
        words = [line.split()[1] for line in feed.said() if line.startswith("published ") and " messages" in line]
        if words and words[-1].replace(",", "").isdigit():
            self._shown.update("publish", int(words[-1].replace(",", "")))
        return feed.code

    def _follow_job(self, total: int) -> None:
        """Show how far the job is, until it ends."""
        job = self._job
        assert job is not None
        progress = _Progress(self._clock, self._shown, self._job_started, total)
        self._children.wait(lambda: progress.look(job.said()) or job.code is not None, but=job)
        code = self._children.wait(lambda: job.code is not None, but=job) and self._children.end(job)
        progress.look(job.said())
        if code != 0 or not progress.done:
            raise Wrong(f"the Spark job ended with code {code}: {job.last_words()} (all of it: {job.log})")

    def _wait_for_blocklist(self) -> None:
        """The loop is closed when the handler has put every suspect on the list."""
        from workers.api_requests import suspects  # noqa: PLC0415 (pyspark, which takes its time)

        wanted = {one.address for one in suspects.read(self._output / "spam" / "suspects.parquet")}
        with self._phase("block list", len(wanted)):

            def blocked() -> bool:
                listed = {entry.address for entry in self._blocklist.entries()}
                self._shown.update("block list", len(wanted & listed), len(wanted))
                return wanted <= listed

            if not self._children.wait(blocked, within=_BLOCKLIST_SECONDS):
                late = f"not every suspect reached the block list within {_BLOCKLIST_SECONDS:.0f} s"
                raise Wrong(f"{late}: see {self._work / 'workers.log'}")
            self._shown.end("block list", f"{len(wanted):,} suspects")

    def _end_workers(self, workers: Child) -> dict[str, dict[str, int]]:
        code = self._children.end(workers)
        if code != 0:
            raise Wrong(f"the workers ended with code {code}: {workers.last_words()} (all of it: {workers.log})")
        ledger: dict[str, dict[str, int]] = json.loads((self._work / f"{workers.name}.json").read_text())
        return ledger

    def _report(self, published: dict[str, int], ledger: dict[str, dict[str, int]]) -> dict[str, Any]:
        from workers.api_requests import figures, report  # noqa: PLC0415 (matplotlib and pyarrow)

        with self._phase("report"):
            counted = figures.read(self._output, source=str(self._source), published=published)
            counted.ledger, counted.notes = ledger, self._notes
            report.draw(counted, self._output)
        counted.phases = self._clock.phases
        counted.seconds = self._clock.now()
        report.write(counted, self._output)
        self._shown.end("report", str(self._output / "report.html"))
        if wrong := counted.contradictions():
            raise Wrong(f"the counts do not agree: {'; '.join(wrong)}. The report is in {self._output / 'report.html'}")
        return counted.summary()


class _Progress:
    """Reads what the job tells, and shows it."""

    def __init__(self, clock: Clock, shown: Display, since: float, total: int) -> None:
        self._clock = clock
        self._shown = shown
        self._started = self._since = since
        self._total = total
        self._read = 0
        self._complete: set[str] = set()
        self.done = False
        self._now = "Spark is starting"
        shown.begin("Spark")

    def look(self, lines: list[str]) -> bool:
        """Whether the job says that it is done."""
        self._shown.still(self._now)
        for line in lines[self._read :]:
            self._read += 1
            if line.startswith('{"event"'):
                event = json.loads(line)
                getattr(self, f"_{event['event']}", lambda _: None)(event)
        return self.done

    def _ready(self, _: dict[str, Any]) -> None:
        self._clock.note("Spark", self._started)
        self._since = self._clock.now()
        self._shown.end("Spark", "session is up")
        for channel in _CHANNELS:
            self._shown.begin(channel, self._total)
        self._now = f"Spark is reading {self._total:,} lines in three channels"

    def _lines(self, event: dict[str, Any]) -> None:
        for channel, counts in event["done"].items():
            lines = sum(counts.values())
            if channel in self._complete:
                continue
            self._shown.update(channel, lines, self._total)
            if lines >= self._total:
                self._complete.add(channel)
                self._clock.note(channel, self._since)
                self._shown.end(channel, f"{counts.get('parsed', 0):,} requests, {counts.get('rejected', 0):,} rejected")
        if len(self._complete) == len(_CHANNELS) and "verdicts" not in self._complete:
            self._complete.add("verdicts")
            self._since = self._clock.now()
            self._shown.begin("verdicts")
            self._now = "judging what every address did"

    def _done(self, event: dict[str, Any]) -> None:
        self._clock.note("verdicts", self._since)
        self._shown.end("verdicts", f"{event['suspects']:,} suspects published to spam_suspects")
        self.done = True


def _broker(url: str | None) -> str | None:
    """``url``, told which channels get a copy where the broker makes none. Raises WrongUse for one that cannot be used."""
    if url is None:
        return None
    if url.startswith(_NO_FAN_OUT) and "fanout=" not in url:
        copies = ",".join(f"{TOPIC}/{channel}" for channel in _CHANNELS)
        url += f"{'&' if '?' in url else '?'}fanout={copies}"
    Publisher(url).close()  # which connects to nothing
    return url


def _print_summary(summary: dict[str, Any], output: Path) -> None:
    refused = ", ".join(f"{count:,} {kind}" for kind, count in summary["refused"].items() if count)
    lines = [
        "",
        f"{summary['input_lines']:,} lines read, {summary['published']:,} published"
        + (f" (refused: {refused})" if refused else ""),
        f"{summary['archived']:,} archived from {summary['addresses']:,} addresses, {summary['rejected']:,} rejected",
        f"{len(summary['spam']):,} suspects on the block list; {summary['seconds']:.1f} s in all",
        *(f"note: {note}" for note in summary["notes"]),
        f"report: {output / 'report.html'}",
        "",
    ]
    sys.stdout.write("\n".join(lines))
    sys.stdout.flush()


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description="Run an access log through the whole pipeline.", allow_abbrev=False)
    parser.add_argument(
        "--input", type=Path, default=Path(INPUT), metavar="PATH", help=f"common or combined format, plain or .gz ({INPUT})"
    )
    parser.add_argument(
        "--broker",
        metavar="URL",
        help="one that runs already: nsq://host:4150, beanstalkd://host:11300 (default: an nsqd of our own)",
    )
    parser.add_argument(
        "--output", type=Path, default=Path(OUTPUT), metavar="FOLDER", help=f"what is in it from an earlier demo goes ({OUTPUT})"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """The exit code: 0 done or stopped by a signal, 1 failed, 2 wrong use (nothing was started), 3 no broker."""
    signals = Signals()
    given = _arguments(argv)
    try:
        broker = _broker(given.broker)
        check_input(given.input)
        held = folder.begin(given.output)
        with display() as shown:
            summary = Demo(given.input.absolute(), given.output, broker, signals, shown).run()
        os.close(held)
    except Interrupted:
        sys.stdout.write("demo: stopped; nothing is left running\n")
        return 0
    except WrongUse as error:
        sys.stderr.write(f"demo: {error}\n")
        return 2
    except (ChildDied, Wrong, OSError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return getattr(error, "code", 1)
    _print_summary(summary, given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
