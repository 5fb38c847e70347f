"""The job's streaming queries: started, looked after, started again where Spark gave up too early, and stopped."""

from __future__ import annotations

from collections.abc import Callable

import click
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from framework import WrongUse
from workers.api_requests.collect.topics import CHANNELS

_NO_FAULT_OF_OURS = (
    "Python worker failed to connect back",  # it has no condition, and the time no setting: docs/spark-upstream.md, 2
    "java.io.OptionalDataException",  # docs/spark-upstream.md, 5
)
_REVIVALS = 10
_TELLING = ("framework.", "workers.", "pyspark.errors.", "sqlite3.", "pyarrow.", "OSError", "RuntimeError")
_FULL = "No space left on device"
_JAVAS = ": "  # before the words of Java's error, in those of py4j's, which begin with what was called


class Failed(Exception):
    """The job cannot go on; the words are for the terminal."""


def check_names(session: SparkSession) -> None:
    """Raises WrongUse where a query of the user's has a channel's name: a session takes no second one of that name."""
    for name in sorted({query.name for query in session.streams.active} & {*CHANNELS}):
        raise WrongUse(
            f"a query named {name} runs in this session, and the job has one of that name: stop it, or name it otherwise"
        )


class Queries:
    """The channels' queries, by name. ``start(name)`` starts one from its checkpoint. ``may_end``: by itself."""

    def __init__(self, start: Callable[[str], StreamingQuery], *, may_end: bool = False) -> None:
        self._start = start
        self._may_end = may_end
        self._running: dict[str, StreamingQuery] = {}
        try:
            for name in CHANNELS:
                self._running[name] = start(name)
        except BaseException:
            self.stop()  # or they would go on in a session that was given
            raise
        self._revived = dict.fromkeys(CHANNELS, 0)

    def running(self) -> list[StreamingQuery]:
        return list(self._running.values())

    def ended(self) -> bool:
        """Whether each has ended by itself and without an error, as with a trigger that takes what is there."""
        return all(not query.isActive and query.exception() is None for query in self._running.values())

    def revive(self) -> None:
        """Start again what ended for want of time alone (Spark gives a Python worker 10 s to start, whatever else the machine
        does), or because Spark could not read what it had written to its own task. Raises Failed for what ended otherwise, and
        for what does so again and again."""
        for name, query in self._running.items():
            if query.isActive or (self._may_end and query.exception() is None):
                continue
            why = _why(query)
            if not any(words in why for words in _NO_FAULT_OF_OURS) or self._revived[name] == _REVIVALS:
                raise Failed(why)
            self._revived[name] += 1
            click.echo(f"job: {why}; started again ({self._revived[name]} of {_REVIVALS})", err=True)
            self._running[name] = self._start(name)

    def stop(self) -> None:
        """End all of them; never raises."""
        for name, query in self._running.items():
            try:
                query.stop()
            except ConnectionError:  # the JVM has died, and the query with it
                continue
            except Exception as error:  # the session may be going down as well
                click.echo(f"job: stopping {name}: {type(error).__name__}", err=True)


def _why(query: StreamingQuery) -> str:
    """The first line of what went wrong that says something."""
    try:
        error: BaseException | None = query.exception()
        name = query.name
    except Exception as failed:
        error, name = failed, "of Spark"
    return f"channel {name}: {words_of(error) if error is not None else 'it ended'}"


def words_of(error: BaseException) -> str:
    """The line of what ``error`` says that says most. Its kind, where it can say nothing: Spark's errors ask the JVM for
    their words, which may have gone."""
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:
        lines = []
    # What ends in a colon only announces a line below it: the error of a Python worker.
    telling = [line for line in lines if line.startswith(_TELLING) and not line.endswith(":")]
    javas = [line.removeprefix(_JAVAS) for line in lines if line.startswith(_JAVAS)]
    said = (telling or javas or lines or [type(error).__name__])[0]
    full = any(_FULL in line for line in lines) and _FULL not in said  # Spark names the task, and the disk as a cause of causes
    return f"{said.rstrip('.')}: {_FULL}" if full else said
