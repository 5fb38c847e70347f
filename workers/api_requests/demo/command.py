"""The whole pipeline from one command: a log through the broker, three channels and Spark into a report.

python -m workers.api_requests.demo [--input PATH] [--broker URL] [--output var/demo]
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from framework import WrongUse
from workers.api_requests.collect.check_input import check_input
from workers.api_requests.collect.feed import broker_of
from workers.api_requests.demo import folder
from workers.api_requests.demo.display import display
from workers.api_requests.demo.run import Demo, Wrong
from workers.api_requests.processes import ChildDied

INPUT = "data/erddap_access_2024-05.log.gz"
OUTPUT = "var/demo"


class Interrupted(Exception):
    """A signal asked for the end."""


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
        broker = broker_of(given.broker) if given.broker is not None else None
        check_input(given.input)
        held = folder.begin(given.output)
        with display() as shown:
            summary = Demo(given.input.resolve(), given.output, broker, signals.check, shown, lock=held).run()
        os.close(held)
    except Interrupted:
        sys.stdout.write("demo: stopped; nothing is left running\n")
        return 0
    except WrongUse as error:
        sys.stderr.write(f"demo: {error}\n")
        return 2
    except (ChildDied, Wrong) as error:
        sys.stderr.write(f"demo: {error}\n")
        return error.code
    except (OSError, sqlite3.Error) as error:
        names_none = isinstance(error, sqlite3.Error) or (error.errno == errno.ENOSPC and error.filename is None)
        sys.stderr.write(f"demo: {f'--output {given.output}: ' if names_none else ''}{error}\n")
        return 1
    _print_summary(summary, given.output)
    return 0
