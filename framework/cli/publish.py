"""``workers publish``: the lines of a file become messages, and every line is accounted for at the end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path

import click

from framework import names
from framework.bodies import CHUNK_BYTES, CHUNK_MESSAGES
from framework.cli import options
from framework.cli.brokers import reach
from framework.cli.exit_codes import Exit, as_text
from framework.cli.lines import Line, Reading
from framework.cli.progress import progress
from framework.cli.signals import Interrupted, interrupting
from framework.errors import BadInput, BadMessage, PublishError
from framework.publisher import Publisher
from framework.settings import Settings, check_writable, write_at_end

STANDARD_INPUT = "-"
_SHOWN = 5


@click.command(epilog="\b\nExit codes:\n" + as_text())
@click.argument("topic")
@click.argument("file", default=STANDARD_INPUT, metavar="[FILE|-]")
@click.option("--summary", type=click.Path(path_type=Path), metavar="FILE", help="Write the counts to FILE as JSON.")
@options.settings("brokers", "data_path", "connect_deadline")
def command(topic: str, file: str, summary: Path | None, settings: Settings) -> int:
    """Publish each line of FILE (text or gzip; - or nothing: standard input) as a message to TOPIC.

    Empty lines and lines that are too large for the broker are counted and not published. Without --broker, the
    embedded nsqd of --data-path is used if it runs, else 127.0.0.1:4150.
    """
    names.check("topic", topic)
    if summary:
        check_writable(summary, "--summary")
    with _opened(file) as stream:
        reading = Reading(stream, file)
        lines = _checked_lines(reading)
        publishing = Publishing(Publisher(reach(settings)), topic)
        try:
            with interrupting(), progress(_size(stream)) as shown, publishing:
                for sent in publishing.send_all(lines):
                    shown.update(reading.bytes_read, sent)
        except Interrupted as signal:
            click.echo(f"workers: {signal} came; {publishing.so_far(in_doubt=True)}", err=True)
            return signal.exit_code
    return _report(reading, publishing, summary)


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


def _checked_lines(reading: Reading) -> Iterator[list[Line]]:
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

    def __init__(self, publisher: Publisher, topic: str) -> None:
        self.publisher = publisher
        self.topic = topic
        self.published = 0
        self.empty: list[int] = []
        """Their line numbers, as of the oversized ones."""
        self.oversized: list[int] = []
        self._sending = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.publisher.close()

    def send_all(self, lines: Iterable[list[Line]]) -> Iterator[int]:
        """Yields how many have been published, after every request. Raises PublishError, with that count in it."""
        for chunk in chain.from_iterable(map(self._chunks, lines)):
            self._sending = self.published + len(chunk)
            try:
                self._send(chunk)
            except PublishError as error:
                words = f"{error}; {self.so_far(in_doubt=error.stored is None)}"
                raise PublishError(words, stored=error.stored) from error
            self._sending = 0
            yield self.published

    def so_far(self, *, in_doubt: bool) -> str:
        """The count where it ends early; ``in_doubt``: what was being sent may be stored or not."""
        unknown = max(0, self._sending - self.published) if in_doubt else 0
        doubt = f", and it is not known whether the next {unknown} were" if unknown else ""
        return f"{self.published} messages had been published to {self.topic}{doubt}"

    def _chunks(self, lines: list[Line]) -> Iterator[list[tuple[int, bytes]]]:
        chunk: list[tuple[int, bytes]] = []
        size = 0
        for number, line in lines:
            if not line:
                (self.oversized if line is None else self.empty).append(number)
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
            self.publisher.publish_many(self.topic, [line for _, line in chunk])
        except BadMessage:
            if len(chunk) == 1:
                self.oversized.append(chunk[0][0])
                return
            half = len(chunk) // 2
            self._send(chunk[:half])
            self._send(chunk[half:])
        else:
            self.published += len(chunk)


def _report(reading: Reading, publishing: Publishing, summary: Path | None) -> int:
    counts = {
        "input_lines": reading.lines,
        "published": publishing.published,
        "empty": len(publishing.empty),
        "oversized": len(publishing.oversized),
        "unreadable": reading.unreadable,
    }
    click.echo(
        f"published {publishing.published} of {reading.lines} lines to {publishing.topic}; "
        f"refused {_some('empty', publishing.empty)}, {_some('oversized', publishing.oversized)}; "
        f"{reading.unreadable} unreadable"
    )
    if reading.complaint:
        click.echo(f"workers: {reading.complaint}: what could be read before that is published", err=True)
    if summary:
        write_at_end(summary, "--summary", json.dumps(counts) + "\n")
    return Exit.INCOMPLETE if publishing.oversized or reading.complaint else Exit.CLEAN


def _some(kind: str, numbers: list[int]) -> str:
    """``3 empty (lines 4, 9, 12)``."""
    if not numbers:
        return f"0 {kind}"
    first = ", ".join(map(str, sorted(numbers)[:_SHOWN])) + (", …" if len(numbers) > _SHOWN else "")
    return f"{len(numbers)} {kind} (line{'s' if len(numbers) > 1 else ''} {first})"
