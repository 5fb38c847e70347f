"""``workers publish``: the lines of a file become messages, and every line is accounted for at the end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path

import click

from framework import names
from framework.bodies import CHUNK_BYTES, CHUNK_MESSAGES
from framework.cli import options
from framework.cli.brokers import opened
from framework.cli.exit_codes import Exit, as_text
from framework.cli.lines import Numbered, Reading
from framework.cli.progress import progress
from framework.cli.signals import Interrupted, interrupting
from framework.errors import BadInput, BadMessage, FrameworkError, PublishError
from framework.publisher import Publisher
from framework.settings import Settings, check_writable, write_at_end

STANDARD_INPUT = "-"
_SHOWN = 5
_ONE_TRY = 0.1
"""Seconds that are needed to find out anything, when --connect-deadline is 0."""
_TRIES = 3
"""Times that lines are sent of which it is not known each time whether they are stored."""
_NEVER = 366 * 86_400.0
"""Seconds, in place of a --connect-deadline that never comes."""


@click.command(epilog="\b\nExit codes:\n" + as_text())
@click.argument("topic")
@click.argument("file", default=STANDARD_INPUT, metavar="[FILE|-]")
@click.option(
    "--summary",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the counts to FILE as JSON, also where it ends early.",
)
@options.settings("brokers", "data_path", "connect_deadline", "publish_timeout")
def command(topic: str, file: str, summary: Path | None, settings: Settings) -> int:
    """Publish each line of FILE (text or gzip; - or nothing: standard input) as a message to TOPIC.

    Empty lines and lines that are too large for the broker are counted and not published. Without --broker, the
    embedded nsqd of --data-path is used if it runs, else 127.0.0.1:4150. Of several nodes any that answers will do;
    the first may be waited for as long as --connect-deadline.

    When a node goes away or gives no answer within --publish-timeout, it is not known whether it has stored the lines
    that it was sent last. They are published again, to any node, and so perhaps twice: each line at least once. Where
    no node takes them, that is the end. The topic then has at least as many messages as `published` in the summary
    says, and at most so many and `in_doubt` more.
    """
    names.check("topic", topic)
    if summary:
        check_writable(summary, "--summary")
    counts = Counts()
    try:
        with interrupting():
            return _publish(topic, file, settings, counts, summary)
    except Interrupted as signal:  # before the first was sent, or after the last was answered
        click.echo(f"workers: {signal} came; {counts.published} messages had been published to {topic}", err=True)
        return signal.exit_code


def _publish(topic: str, file: str, settings: Settings, counts: Counts, summary: Path | None) -> int:
    with _summarized(summary, counts), _opened(file) as stream:
        counts.reading = reading = Reading(stream, file)
        lines = _checked_lines(reading)
        publisher = Publisher(opened(settings), timeout=settings.publish_timeout)
        publishing = Publishing(publisher, topic, counts, first_timeout=_first_timeout(settings))
        try:
            with progress(_size(stream)) as shown, publishing:
                for sent in publishing.send_all(lines):
                    shown.update(reading.bytes_read, sent)
        except Interrupted as signal:
            counts.in_doubt += publishing.unanswered
            click.echo(f"workers: {signal} came; {publishing.so_far(publishing.unanswered)}", err=True)
            return signal.exit_code
        return _report(counts, topic)


def _first_timeout(settings: Settings) -> float:
    return _NEVER if settings.connect_deadline is None else max(settings.connect_deadline, _ONE_TRY)


class Counts:
    """What became of the lines so far."""

    def __init__(self) -> None:
        self.reading: Reading | None = None
        self.published = 0
        self.in_doubt = 0
        """Sent, and not answered: the broker may have stored them, beside those that are published."""
        self.perhaps_twice = 0
        """Of the published, those of which a copy is in doubt."""
        self.empty: list[int] = []
        """Their line numbers, as of the oversized ones."""
        self.oversized: list[int] = []

    def as_dict(self) -> dict[str, int]:
        return {
            "input_lines": self.reading.lines if self.reading else 0,
            "published": self.published,
            "in_doubt": self.in_doubt,
            "empty": len(self.empty),
            "oversized": len(self.oversized),
            "unreadable": self.reading.unreadable if self.reading else 0,
        }


@contextmanager
def _summarized(file: Path | None, counts: Counts) -> Iterator[None]:
    """Write the counts to ``file`` at the end of the block, whatever that is: an older file must not be taken for this one."""
    try:
        yield
    except BaseException:
        try:
            _write(file, counts)
        except FrameworkError as error:  # the other is why it ends
            click.echo(f"workers: {error}", err=True)
        raise
    _write(file, counts)


def _write(file: Path | None, counts: Counts) -> None:
    if file:
        write_at_end(file, "--summary", json.dumps(counts.as_dict()) + "\n")


def _opened(file: str) -> BufferedReader:
    standard = file == STANDARD_INPUT
    if standard and sys.stdin is None:
        raise BadInput("standard input is closed: name a text file, plain or .gz")
    try:
        return open(sys.stdin.fileno() if standard else file, "rb", closefd=not standard)
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}: give a text file, plain or .gz") from error


def _size(stream: BufferedReader) -> int | None:
    """Bytes, for the progress bar; None for a pipe."""
    return os.fstat(stream.fileno()).st_size or None


def _checked_lines(reading: Reading) -> Iterator[list[Numbered]]:
    """The lines; what is wrong with an input as a whole is raised here, before a broker is looked for."""
    lines = iter(reading)
    first = list(islice(lines, 1))
    if not first and reading.complaint:
        raise BadInput(f"{reading.complaint}, and not one line of it can be read")
    if not first and reading.name != STANDARD_INPUT:
        raise BadInput(f"{reading.name} is empty: there is nothing to publish")
    return chain(first, lines)


class Publishing:
    """Sends lines in requests of many, and counts what became of each."""

    def __init__(self, publisher: Publisher, topic: str, counts: Counts, *, first_timeout: float) -> None:
        self.publisher = publisher
        self.topic = topic
        self.counts = counts
        self._timeout: float | None = first_timeout  # None: the publisher's own
        self._chunk_end = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.publisher.close()

    def send_all(self, lines: Iterable[list[Numbered]]) -> Iterator[int]:
        """Yields how many have been published, after every request. Raises PublishError, with that count in it."""
        for chunk in chain.from_iterable(map(self._chunks, lines)):
            self._chunk_end = self.counts.published + len(chunk)
            self._send(chunk)
            self._chunk_end = 0
            yield self.counts.published

    @property
    def unanswered(self) -> int:
        """How many messages of the chunk that is being sent have not been confirmed."""
        return max(0, self._chunk_end - self.counts.published)

    def so_far(self, unknown: int) -> str:
        """The count where it ends early. ``unknown``: the messages behind it that may be stored."""
        doubt = f", and it is not known whether the next {unknown} were" if unknown else ""
        return f"{self.counts.published} messages had been published to {self.topic}{doubt}"

    def _chunks(self, lines: list[Numbered]) -> Iterator[list[tuple[int, bytes]]]:
        chunk: list[tuple[int, bytes]] = []
        size = 0
        for number, line in lines:
            if not line:
                (self.counts.oversized if line is None else self.counts.empty).append(number)
                continue
            if chunk and (len(chunk) == CHUNK_MESSAGES or size + len(line) > CHUNK_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append((number, line))
            size += len(line)
        if chunk:
            yield chunk

    def _send(self, chunk: list[tuple[int, bytes]]) -> None:
        """The broker refuses a chunk whole if one line is too large for it: halving finds which."""
        try:
            self._store([line for _, line in chunk])
        except BadMessage:
            if len(chunk) == 1:
                self.counts.oversized.append(chunk[0][0])
                return
            half = len(chunk) // 2
            self._send(chunk[:half])
            self._send(chunk[half:])
        else:
            self.counts.published += len(chunk)
            self._timeout = None

    def _store(self, lines: list[bytes]) -> None:
        """What may be stored is sent again. Raises PublishError when no broker takes it, with the count."""
        unknown = 0
        for left in reversed(range(_TRIES)):
            try:
                self.publisher.publish_many(self.topic, lines, timeout=self._timeout)
            except BadMessage:
                raise
            except PublishError as error:
                if error.stored is None:
                    unknown = len(lines)
                    self.counts.in_doubt += unknown
                if error.stored is not None or not left:
                    raise PublishError(f"{error}; {self.so_far(unknown)}", stored=None if unknown else error.stored) from error
            else:
                self.counts.perhaps_twice += unknown
                return


def _report(counts: Counts, topic: str) -> int:
    reading = counts.reading
    assert reading is not None
    twice = f", {counts.perhaps_twice} of them perhaps twice" if counts.perhaps_twice else ""
    click.echo(
        f"published {counts.published} of {reading.lines} lines to {topic}{twice}; "
        f"refused {_some('empty', counts.empty)}, {_some('oversized', counts.oversized)}; "
        f"{reading.unreadable} unreadable"
    )
    if reading.complaint:
        click.echo(f"workers: {reading.complaint}: what could be read before that is published", err=True)
    return Exit.INCOMPLETE if counts.oversized or reading.complaint else Exit.CLEAN


def _some(kind: str, numbers: list[int]) -> str:
    """``3 empty (lines 4, 9, 12)``."""
    if not numbers:
        return f"0 {kind}"
    first = ", ".join(map(str, sorted(numbers)[:_SHOWN])) + (", …" if len(numbers) > _SHOWN else "")
    return f"{len(numbers)} {kind} (line{'s' if len(numbers) > 1 else ''} {first})"
