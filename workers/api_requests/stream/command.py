"""The Spark job: three streams from the spools of the channels archive, growth and spam to Parquet and to suspects.

    python -m workers.api_requests.stream --follow             until a signal; the Procfile's line
    python -m workers.api_requests.stream --available-now      what has been landed, as a scheduler would start it
    python -m workers.api_requests.stream --until 16275        until every channel has done that many lines

It goes on where it stopped: the state folder holds Spark's checkpoints and everything that is counted.
"""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname
from zoneinfo import available_timezones

import click
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from framework import FrameworkError, Publisher, WrongUse
from workers.api_requests.collect.topics import SUSPECTS_TOPIC
from workers.api_requests.detect.spam.allowed import Allowed
from workers.api_requests.stream import session as sessions
from workers.api_requests.stream.folders import Folders, beginning, check_spools, check_zone, obstacles, take, without_spools
from workers.api_requests.stream.hadoop import HadoopOutput
from workers.api_requests.stream.lookout import Lookout, run
from workers.api_requests.stream.outbox import Outbox, Sender
from workers.api_requests.stream.output import URL, LocalOutput
from workers.api_requests.stream.queries import Failed, check_names, words_of
from workers.api_requests.stream.stopping import Stopping
from workers.api_requests.stream.streams import Job


def _target(until: int | None, summary: Path | None) -> int | None:
    """How many lines there will be; None while it is not known."""
    if summary is None:
        return until
    try:
        return int(json.loads(summary.read_text())["published"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _teller(events: bool) -> Callable[..., None]:
    """Tells what happens on stdout: as JSON for a program, else in words."""

    def tell(event: str, **more: Any) -> None:
        if events:
            click.echo(json.dumps({"event": event, **more}))
        elif event == "lines":
            words = (f"{name} {sum(counts.values()):,}" for name, counts in more["done"].items())
            waits = (f"{name} {one['rows']:,} for {one['seconds']:,.0f} s" for name, one in more["waiting"].items())
            waiting = f"; waiting: {', '.join(waits)}" if more["waiting"] else ""
            late = f"; late, and counted: {more['late']:,}" if more["late"] else ""
            bad = more["done"]["archive"].get("rejected", 0)
            rejected = f"; rejected, and kept with the reasons: {bad:,}" if bad else ""
            click.echo(f"job: lines done: {', '.join(words)}{rejected}{waiting}{late}")
        else:
            click.echo(f"job: {event} {' '.join(f'{k}={v}' for k, v in more.items())}".rstrip())

    return tell


class _Folder(click.Path):
    """A folder, there or to be made; of a URL there would be made one with a name like ``s3:``, and of ``~/x`` one that is named
    ``~``: bash leaves it as it is in ``--spool=~/x``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if URL.match(str(value)):
            self.fail(f"{value} is a URL: name a folder of a mounted file system", param, ctx)
        if str(value).startswith(("~", "$")):
            self.fail(f"{value}: no shell has replaced its beginning: name the whole path", param, ctx)
        return super().convert(value, param, ctx)


class _FolderOrUrl(_Folder):
    """A folder's path; a URL stays the text that it is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if URL.match(str(value)) and not str(value).startswith("file:"):
            return str(value)
        return super().convert(url2pathname(urlsplit(value).path) if URL.match(str(value)) else value, param, ctx)


class _Master(click.types.StringParamType):
    """What Spark would take; of anything else it says so in a stack of Java's."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not _MASTER.fullmatch(str(value)):
            words = "say local[*], local[N], spark://host:port, yarn or k8s://url"
            self.fail(f"{value!r} is no master of Spark: {words}", param, ctx)
        return value


class _Seconds(click.FloatRange):
    """``nan`` is in no range, and click takes it for any."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


class _Instant(click.types.StringParamType):
    """A time that is the same whoever reads it."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            said = datetime.fromisoformat(str(value))
            at = None if said.tzinfo is None else said.astimezone(UTC)
        except (ValueError, OverflowError):  # in year 1, some times of other zones are none of UTC's
            at = None
        if at is None:
            self.fail(f"{value!r}: say a time with its zone, such as 2024-06-01T00:00:00Z", param, ctx)
        return at


class _Zone(click.types.StringParamType):
    """What Java takes too: a name of the tz database, or how far a clock is from UTC's."""

    name = "zone"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not _OFFSET.fullmatch(str(value)) and (names := available_timezones()) and value not in names - _NOT_JAVAS:
            self.fail(f"{value!r} is no time zone: say one such as UTC, Europe/Paris or +02:00", param, ctx)
        return value


_OFFSET = re.compile(r"[+-](0[0-9]|1[0-7]):[0-5][0-9]|[+-]18:00")
_NOT_JAVAS = {"Factory", "ROC", "localtime", "posixrules"}
_MASTER = re.compile(
    r"local(\[(\*|[1-9][0-9]*)(, *[1-9][0-9]*)?\])?|local-cluster\[[0-9]+, *[0-9]+, *[0-9]+\]|yarn|k8s://\S+"
    r"|spark://[^\s,:/]+:[0-9]{1,5}(,[^\s,:/]+:[0-9]{1,5})*"
)
_FOLDER = _Folder(file_okay=False, path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--follow", is_flag=True, help="Go on until SIGTERM or SIGINT.")
@click.option("--available-now", is_flag=True, help="Do what is in the spools when it starts, and end.")
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
    type=_FolderOrUrl(file_okay=False, path_type=Path),
    envvar="API_REQUESTS_OUTPUT",
    default="var/api_requests",
    show_default=True,
    help="archive, rejected, growth, spam: a folder, or the URL of one on a file system that Spark writes to.",
)
@click.option(
    "--state", type=_FOLDER, envvar="API_REQUESTS_STATE", default="var/job", show_default=True, help="Checkpoints and counts."
)
@click.option("--broker", "brokers", multiple=True, envvar="BROKER_URL", default=["nsq://127.0.0.1:4150"], show_default=True,
              metavar="URL", help="Where the suspects are published.")  # fmt: skip
@click.option("--from", "since", type=_Instant(), metavar="TIME",
              help="Begin with the lines that the queue took then or later, as far as the spools keep them, and delete nothing "
              "there; with an empty --state and --output.")  # fmt: skip
@click.option("--every", "--trigger", "every", type=_Seconds(0, 86400), envvar="API_REQUESTS_EVERY", metavar="SECONDS",
              help="With --follow, how often a batch starts; 10, and 30 for the archive's larger files.")  # fmt: skip
@click.option("--master", type=_Master(), metavar="URL",
              help="Spark's master; else what Spark's own settings or spark-submit say, else local[*].")  # fmt: skip
@click.option("--time-zone", "zone", type=_Zone(), envvar="API_REQUESTS_TIME_ZONE", metavar="ZONE",
              help="Of hours, days and the archive's dates; else what Spark's settings say, else UTC.")  # fmt: skip
@click.option("--forget", type=click.IntRange(min=1), envvar="API_REQUESTS_FORGET", metavar="DAYS",
              help="A suspect is none any more when no line of it came for so long; else it stays one.")  # fmt: skip
@click.option("--allow", multiple=True, envvar="API_REQUESTS_ALLOW", metavar="ADDRESS",
              help="An address, or a network as 192.0.2.0/24, that is no suspect; may be given several times.")  # fmt: skip
@click.option("--short", is_flag=True, help="Settings for a run of a minute: Spark starts sooner and works slower.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="Where the JVM's messages go; stderr.")
@click.option("--events", is_flag=True, help="Tell what happens as JSON, a line each.")
def command(**options: Any) -> int:
    """Archive the API requests that the handlers land, count growth, and find suspects."""
    stopping = Stopping(guest=sessions.given() is not None)
    try:
        return _run(stopping, options)
    finally:
        stopping.give_back()


def _run(stopping: Stopping, options: dict[str, Any]) -> int:
    follow, until, summary = options["follow"], options["until"], options["until_summary"]
    if follow + options["available_now"] + (until is not None) + (summary is not None) != 1:
        raise WrongUse("say one of --follow, --available-now, --until N and --until-summary FILE")
    publisher = Publisher(options["brokers"])  # which connects to nothing, and says what is wrong with a URL
    allowed = Allowed(options["allow"])
    place, spool, state = options["output"], options["spool"].absolute(), options["state"].absolute()
    if options["available_now"]:
        check_spools(spool)
    elif follow and (words := without_spools(spool)):
        _warn(f"{words} so far: it is waited for; if the handlers land elsewhere, name that folder")
    here = Folders(spool, LocalOutput(place.absolute()), state) if isinstance(place, Path) else None
    held = None if here is None else take(here)  # as much wrong use as can be seen before anything starts
    since = beginning(state, options["since"])
    tell = _teller(options["events"])
    tell("starting")
    session = sessions.start(
        "api_requests", state / "scratch", master=options["master"], short=options["short"], log=options["log"]
    )
    stopping.listen()
    sender = Sender(Outbox(state / "outbox.sqlite"), publisher, SUSPECTS_TOPIC, _warn)
    try:
        check_names(session.spark)
        if options["zone"]:
            session.spark.conf.set("spark.sql.session.timeZone", options["zone"])
        folders = here or Folders(spool, HadoopOutput(place, session.spark), state)
        held = take(folders) if held is None else held
        check_zone(state, session.zone)
        tell("ready")
        sender.start()
        job = Job(session, folders, sender, follows=follow or options["available_now"],
                  forget=options["forget"], allowed=allowed, since=since)  # fmt: skip
        lookout = Lookout(job, tell, stopping)
        target = None if follow or options["available_now"] else partial(_target, until, summary)
        run(job, lookout, target, options["every"] if follow else 0.0, available_now=options["available_now"])
        tell("done", suspects=len(job.evidence.known()))
    except (Failed, PySparkException, Py4JError, OSError, sqlite3.Error, pa.ArrowException) as error:
        # In words as long as there is a JVM to ask for them; where it has died, all else is what came of that.
        places = {"--state": state, "--spool": spool} | ({"--output": place} if isinstance(place, Path) else {})
        raise Failed((session.death() or words_of(error)) + obstacles(places)) from None
    finally:
        sender.stop()
        session.stop()
        if held is not None:
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
    except click.Abort:  # SIGINT while pyspark has the signal, before we have it again
        return 0
    except (Failed, FrameworkError, PySparkException, OSError) as error:
        _warn(words_of(error))
        return 1
