"""One run of the demo, from the first process to the report.

Every part is a process of its own, as in a deployment; this module starts them in order, shows how far they are, and
sees to it that none is left. It parses nothing and counts nothing itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workers.api_requests.collect import feed
from workers.api_requests.collect.topics import CHANNELS, SUSPECTS_CHANNEL, SUSPECTS_TOPIC, TOPIC
from workers.api_requests.demo import folder
from workers.api_requests.demo.display import Display
from workers.api_requests.demo.progress import Clock, Progress
from workers.api_requests.detect.blocklist import BlockList
from workers.api_requests.processes import Child, Children, python

_START_SECONDS = 40.0
_QUIET_SECONDS = 1.5
_LEFTOVERS_SECONDS = 60.0
_BLOCKLIST_SECONDS = 60.0


class Wrong(Exception):
    """The run failed; the words are for the terminal, ``code`` for the shell."""

    def __init__(self, words: str, code: int = 1) -> None:
        super().__init__(words)
        self.code = code


class Demo:
    """One run."""

    def __init__(
        self, source: Path, output: Path, broker: str | None, check: Callable[[], None], shown: Display, *, lock: int
    ) -> None:
        """``lock``: the descriptor that locks the output. Every process has it, so that none works in the next run's folder."""
        self._source = source
        self._output = output
        self._work = output / folder.WORK
        self._broker = broker
        self._check = check
        self._shown = shown
        self._lock = lock
        self._clock = Clock()
        self._children = Children(check)
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
        output = self._work / f"{log or name}.log"
        return self._children.start(Child(name, python(*command), output, environ=environ, keeps=[self._lock]))

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
            "job", "-m", "workers.api_requests.stream", "--events", "--short", f"--until-summary={self._work / 'published.json'}",
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
        until = time.monotonic() + _LEFTOVERS_SECONDS
        self._await_quiet(spool)
        while time.monotonic() < until and self._has_messages(broker):
            self._await_quiet(spool)
        ledger = self._end_workers(workers)
        found = max((ends["finished"] for ends in ledger.values()), default=0)
        self._shown.end("leftovers", f"{found:,} messages of an earlier run set aside" if found else "none")
        if found:
            self._notes.append(
                f"{found:,} messages of an earlier run were in the channels; they were set aside and are not counted."
            )

    def _await_quiet(self, spool: Path) -> None:
        """Nothing has landed for a moment."""
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < _QUIET_SECONDS:
            self._children.wait(lambda: False, within=0.1)
            size = sum(path.stat().st_size for path in spool.rglob("*") if path.is_file()) if spool.exists() else 0
            if size != seen:
                seen, since = size, time.monotonic()

    def _has_messages(self, broker: str) -> bool:
        """Whether a channel still has some, as far as the broker says: on a busy machine the first may take longer to land than
        anybody would wait for nothing."""
        lines = [f"{TOPIC}/{channel}" for channel in CHANNELS]
        return any(self._messages_in(channel, broker) for channel in (*lines, f"{SUSPECTS_TOPIC}/{SUSPECTS_CHANNEL}"))

    def _messages_in(self, channel: str, broker: str) -> int:
        """0 where the broker cannot be asked."""
        hint = self._start("scale-hint", "-m", "framework.cli", "scale-hint", channel, f"--broker={broker}")
        self._children.wait(lambda: hint.code is not None, but=hint)
        said = [line for line in hint.said() if line.isdecimal()]
        return int(said[-1]) if self._children.end(hint) == 0 and said else 0

    def _publish(self, broker: str) -> dict[str, int]:
        summary = self._work / "published.json"
        with self._phase("publish"):
            publisher = self._start("publish", *feed.arguments(self._source, broker, summary))
            self._children.wait(lambda: self._show_published(publisher) is not None, but=publisher)
            code = self._children.end(publisher)
            if code not in (0, feed.INCOMPLETE):
                raise Wrong(f"publish ended with code {code}: {publisher.last_words().removeprefix('workers: ')}", code)
            published = feed.complete(summary)
            self._shown.end("publish", f"{published['published']:,} of {published['input_lines']:,} lines")
        self._notes += feed.notes(publisher.said())
        return published

    def _show_published(self, publisher: Child) -> int | None:
        if (lines := feed.done(publisher.said())) is not None:
            self._shown.update("publish", lines)
        return publisher.code

    def _follow_job(self, total: int) -> None:
        """Show how far the job is, until it ends."""
        job = self._job
        assert job is not None
        progress = Progress(self._clock, self._shown, self._job_started, total)
        self._children.wait(lambda: progress.look(job.said()) or job.code is not None, but=job)
        code = self._children.wait(lambda: job.code is not None, but=job) and self._children.end(job)
        progress.look(job.said())
        if code != 0 or not progress.done:
            raise Wrong(f"the Spark job ended with code {code}: {job.last_words()} (all of it: {job.log})")

    def _wait_for_blocklist(self) -> None:
        """The loop is closed when the handler has put every suspect on the list."""
        from workers.api_requests.detect.spam import suspects  # noqa: PLC0415 (pyarrow, which takes its time)

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
        from workers.api_requests.report import figures, write  # noqa: PLC0415 (matplotlib and pyarrow)

        with self._phase("report"):
            counted = figures.read(self._output, source=str(self._source), published=published)
            counted.ledger, counted.notes = ledger, self._notes
            write.pictures(counted, self._output)
        counted.phases = self._clock.phases
        counted.seconds = self._clock.now()
        write.page_and_summary(counted, self._output)
        self._shown.end("report", str(self._output / "report.html"))
        if wrong := counted.contradictions():
            raise Wrong(f"the counts do not agree: {'; '.join(wrong)}. The report is in {self._output / 'report.html'}")
        return counted.summary()
