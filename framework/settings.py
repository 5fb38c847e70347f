"""The settings of a worker, in one table: defaults < YAML file < environment < flags. ``python -m framework.settings``
prints docs/settings.md from it; the command line makes its options from it."""

# ruff: noqa: RUF009 - each row of the table is a dataclass field

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from framework import amounts, tuning, values
from framework.errors import BadSetting, FrameworkError, shown
from framework.markdown import item

#: Where a client looks when it is told nothing: nsqd's own default address.
DEFAULT_BROKER = "nsq://127.0.0.1:4150"

NO_FLAG = "-"
"""Of a secret."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table."""

    name: str
    flag: str
    """Empty where it has none: the command line of a process can be read by all users."""
    env: str
    kind: str
    metavar: str
    shown_default: str
    help: str
    parse: Callable[[object], Any]
    repeatable: bool = False
    switch: bool = False
    """Its flag has no value."""


def _setting(
    default: Any, parse: Callable[[object], Any], kind: str, text: str, *, shown: str = "", flag: str = "", env: str = "",
    switch: bool = False,
) -> Any:  # fmt: skip
    row = {"parse": parse, "kind": kind, "help": text, "shown": shown or str(default), "flag": flag, "env": env, "switch": switch}
    return field(default=default, metadata=row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one worker process; durations are in seconds."""

    brokers: tuple[str, ...] = _setting(
        (), values.urls, "URL, or several", "Where the messages are: nsq://host:port or nsq+lookupd://host:port.",
        shown="an embedded nsqd", flag="--broker", env="BROKER_URL",
    )  # fmt: skip
    data_path: Path = _setting(
        Path("var/nsqd"), values.path, "folder", "Where the embedded nsqd keeps its messages; not used with a broker."
    )
    nsqd_tcp_address: str = _setting(
        "127.0.0.1:4150", values.address, "host:port", "Where the embedded nsqd listens for clients."
    )
    nsqd_http_address: str = _setting("127.0.0.1:4151", values.address, "host:port", "Where the embedded nsqd answers HTTP.")
    processes: int | None = _setting(
        None, amounts.processes, "number or auto", "How many processes a master keeps at work; auto is one for each core.",
        shown="one process, without a master",
    )  # fmt: skip
    max_tasks: int | None = _setting(
        None, amounts.count, "number", "Replace a process when it has ended about so many messages.", shown="never"
    )
    max_rss: int | None = _setting(
        None, amounts.size, "size", "Replace a process when it takes about so much memory, as 500MB.", shown="never"
    )
    drain: float = _setting(
        25.0, values.duration, "duration", "How long running handlers may take to finish after SIGTERM or SIGINT.", shown="25s"
    )
    connect_deadline: float | None = _setting(
        30.0,
        values.deadline,
        "duration or never",
        "How long to try to reach a broker at start, before giving up. Each handler that is connected begins it anew.",
        shown="30s",
    )
    reload_deadline: float | None = _setting(
        300.0,
        values.deadline,
        "duration or never",
        "How long the first new process of a reload may take to subscribe.",
        shown="5m",
    )
    poll_interval: float = _setting(15.0, values.pause, "duration", "How often to look for new nodes of a topic.", shown="15s")
    publish_timeout: float = _setting(
        5.0, values.pause, "duration", "How long a publish may wait for the broker, unless it says so itself.", shown="5s"
    )
    longest_pause: float = _setting(
        60.0,
        values.pause,
        "duration",
        "How long a handler that pauses (backoff) waits at most before it tries again.",
        shown="60s",
    )
    handlers: tuning.Tuning = _setting(
        (), tuning.parse, "YAML", "Options of handlers in place of those in their code: `{orders/billing: {concurrency: 20}}`.",
        shown="none",
    )  # fmt: skip
    log_level: str = _setting("info", values.level, " | ".join(values.LOG_LEVELS), "The least important log lines to show.")
    sentry_dsn: str | None = _setting(
        None, values.dsn, "URL", "Report failures, and where asked for traces, to this project of Sentry.",
        shown="none", env="SENTRY_DSN",
    )  # fmt: skip
    sentry_events: str = _setting(
        "each", values.word("each", "dead"), "each | dead", "Report each failure to Sentry, or only what becomes a dead letter."
    )
    sentry_traces: float = _setting(
        0.0, values.part, "0 to 1", "The part of the calls to trace in Sentry.", shown="0", env="SENTRY_TRACES_SAMPLE_RATE"
    )
    sentry_bodies: bool = _setting(
        False,
        values.yes_or_no,
        "true | false",
        "Send message bodies, and local variables, to Sentry with each failure.",
        shown="false",
    )
    otel: bool = _setting(
        False, values.yes_or_no, "true | false", "Make spans and metrics of OpenTelemetry of calls and publishes.", shown="false",
        switch=True,
    )  # fmt: skip
    otel_producer: str = _setting(
        "link", values.word("link", "parent"), "link | parent",
        "How the span of a call with one message leads to that of its publish: by a link, or as its parent.",
    )  # fmt: skip
    otel_spans: str = _setting(
        "calls", values.word("calls", "all"), "calls | all",
        "Which spans there are: of calls and publishes, or of receiving and settling too.",
    )  # fmt: skip
    otel_body_sizes: bool = _setting(
        False, values.yes_or_no, "true | false", "Spans say how large bodies are.", shown="false", switch=True
    )
    history: Path | None = _setting(
        None, values.path, "file", "Keep how each message ended in this file, for `workers history`.", shown="none"
    )
    history_age: float = _setting(
        7 * 86400.0, values.pause, "duration", "How long the history keeps what has ended.", shown="168h"
    )
    history_size: int = _setting(
        256 << 20, amounts.size, "size", "How large the history may become; the oldest goes first.", shown="256MB"
    )
    log_format: str = _setting("text", values.word("text", "json"), "text | json", "How log lines are written.")
    log_frames: str = _setting(
        "own",
        values.word("own", "all"),
        "own | all",
        "Which frames tracebacks show in the log: the app's own, or the framework's too.",
    )
    log_file: Path | None = _setting(
        None, values.path, "file", "Append the log to this file in place of stderr; SIGUSR1 opens it again.", shown="none"
    )
    admin: str | None = _setting(
        None, values.admin, "host:port, port or path", "Serve health and metrics over HTTP there; a port alone is 127.0.0.1's.",
        shown="none",
    )  # fmt: skip
    admin_token: str | None = _setting(
        None, values.token, "text", "What clients of `admin` have to say; needed where it can be reached from other machines.",
        shown="none", flag=NO_FLAG,
    )  # fmt: skip
    admin_read_only: bool = _setting(
        False, values.yes_or_no, "true | false", "Let nobody change anything by `admin`: no pauses, no replays.", shown="false",
        switch=True,
    )  # fmt: skip
    ledger: Path | None = _setting(
        None, values.path, "file", "Write at exit how every message ended, per handler, as JSON.", shown="none"
    )


_METAVARS = {
    values.duration: "SECONDS",
    values.pause: "SECONDS",
    values.deadline: "SECONDS",
    values.urls: "URL",
    values.path: "PATH",
    values.level: "LEVEL",
    values.address: "HOST:PORT",
    values.admin: "ADDRESS",
    values.dsn: "URL",
    values.part: "PART",
    tuning.parse: "YAML",
    amounts.processes: "N",
    amounts.count: "N",
    amounts.size: "SIZE",
}


def _row(one: Any) -> Setting:
    made = one.metadata
    return Setting(
        name=one.name,
        flag="" if made["flag"] == NO_FLAG else made["flag"] or "--" + one.name.replace("_", "-"),
        env=made["env"] or "WORKERS_" + one.name.upper(),
        kind=made["kind"],
        metavar="" if made["switch"] else _METAVARS.get(made["parse"], "TEXT"),
        shown_default=made["shown"],
        help=made["help"],
        parse=made["parse"],
        repeatable=made["parse"] is values.urls,
        switch=made["switch"],
    )


TABLE: Mapping[str, Setting] = {one.name: _row(one) for one in fields(Settings) if one.default is not MISSING}


def load(
    flags: Mapping[str, object] | None = None, config: Path | None = None, environ: Mapping[str, str] | None = None,
    *, defaults: Mapping[str, Any] | None = None,
) -> Settings:  # fmt: skip
    """The settings, the later source winning: ``defaults`` over those of all, the YAML file ``config``, ``environ``, ``flags``.

    A flag that is None or empty was not given, and so was an empty environment variable. Raises BadSetting,
    naming the source of the value.
    """
    environ = os.environ if environ is None else environ
    values = {**(defaults or {}), **(_from_file(config) if config else {})}
    _refuse_misspelt(environ)
    for name, row in TABLE.items():
        if environ.get(row.env):
            values[name] = _parsed(row, f"${row.env}", environ[row.env])
    for name, given in (flags or {}).items():
        if given is not None and given != ():
            values[name] = _parsed(TABLE[name], TABLE[name].flag, given)
    return Settings(**values)


def as_environ(settings: Settings) -> dict[str, str]:
    """What has ``publish`` in another process work as with ``settings``."""
    return {
        TABLE["brokers"].env: " ".join(settings.brokers),
        TABLE["publish_timeout"].env: f"{max(settings.publish_timeout, 0.001):.3f}",
    }


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    """Other programs have variables that start with WORKERS_ as well: only what is nearly one of ours is refused."""
    ours = {row.env for row in TABLE.values()}
    for name in environ:
        nearest = name.startswith("WORKERS_") and name not in ours and get_close_matches(name, ours, 1, cutoff=0.9)
        if nearest:
            raise BadSetting(f"${name}: there is no such setting: did you mean ${nearest[0]}?")


def _parsed(row: Setting, source: str, value: object) -> Any:
    try:
        return row.parse(value)
    except ValueError as error:
        wrong = " ".join(value) if isinstance(value, tuple) else value  # a flag that may be repeated
        if not row.flag:  # a secret
            raise BadSetting(f"{source}: it {error}") from None
        raise BadSetting(f"{source}: {shown(wrong)} {error}") from None


def _from_file(path: Path) -> dict[str, Any]:
    found = _read_yaml(path)
    for key in found:
        if key not in TABLE:
            if key in tuning.TUNABLE:
                raise BadSetting(f"{path}: {key!r} is of a handler: write `handlers: {{orders/billing: {{{key}: …}}}}`")
            nearest = next(iter(get_close_matches(str(key), TABLE, 1, cutoff=0.0)))
            raise BadSetting(f"{path}: unknown setting {key!r}: did you mean {nearest!r}? The settings are {', '.join(TABLE)}")
    return {key: _parsed(TABLE[key], f"{key} in {path}", value) for key, value in found.items() if value is not None}


def _read_yaml(path: Path) -> dict[Any, Any]:
    import yaml  # noqa: PLC0415 - slow to import, and only for those who have a file

    from framework import strict_yaml  # noqa: PLC0415

    try:
        found = strict_yaml.load(path.read_bytes())
    except OSError as error:
        raise BadSetting(f"--config {path}: {error.strerror}: give a YAML file that can be read") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        words = " ".join(str(error).split())
        raise BadSetting(f"--config {path} is not YAML: {words}") from None
    if found is not None and not isinstance(found, dict):
        raise BadSetting(f"--config {path} must hold one `name: value` a line, not a {type(found).__name__}")
    return found or {}


def check_writable(file: Path, flag: str) -> None:
    """Raises BadSetting, before any work is done, for a ``file`` that could not be written after it."""
    try:
        writable = not file.is_dir() and os.access(file if file.exists() else file.parent, os.W_OK)
    except OSError:  # a name that is too long, a folder that may not be looked into
        writable = False
    if not writable:
        raise BadSetting(f"{flag} {file} cannot be written: name a file in a folder that exists and is yours")


def write_at_end(file: Path, flag: str, text: str) -> None:
    """Raises FrameworkError, in one sentence: what ``check_writable`` could not see, a disk that is full by now."""
    try:
        file.write_text(text)
    except OSError as error:
        raise FrameworkError(f"{flag} {file} cannot be written: {error.strerror}; its counts are in the lines above") from error


def as_markdown() -> str:
    """docs/settings.md."""
    head = f"""# Settings

*For developers and operators who start workers.*

Each setting has a default. A YAML file (`--config FILE`) overrides the default, the environment overrides the file, and
a flag overrides everything. A duration is in seconds or has a unit: `25`, `25s`, `500ms`, `2m`, `1h`.

The names below are those of the YAML file.

This page is made from `framework/settings.py` by `python -m framework.settings`.

{_items()}
"""
    return head + _HOW_TO_NAME_BROKERS


def _items() -> str:
    return "\n".join(
        item(f"`{r.name}`: {r.help} Type: {r.kind}. Default: {r.shown_default}. Flag: {_flag_of(r)}. Environment: `{r.env}`.")
        for r in TABLE.values()
    )


def _flag_of(row: Setting) -> str:
    return f"`{row.flag}`" if row.flag else "none, because others could read it"


_HOW_TO_NAME_BROKERS = """
`--broker` may be given several times. In the environment, spaces or commas separate URLs. In YAML, `brokers` is one URL
or a list. Without a broker, `workers run` starts an nsqd of its own, which keeps its messages in `data_path`. The
functions `publish`, `publish_many` and `publish_each`, called outside a worker, use `$BROKER_URL`, else
`nsq://127.0.0.1:4150`.

A broker URL may have options, as in `nsq+tls://host:4150?heartbeat=15s&max_msg_size=10485760`: what its nsqds were
started with, TLS, compression, AUTH, how the worker names itself. [NSQ](nsq.md) has the schemes and the options.

```yaml
# workers.yaml
brokers:
  - nsq+lookupd://lookup1:4161
  - nsq+lookupd://lookup2:4161
drain: 25s
connect_deadline: never
log_level: warning
handlers:
  orders/billing: {concurrency: 20, timeout: 2m}
```

`handlers` may set `concurrency`, `max_in_flight`, `timeout`, `max_attempts`, `batch` and `linger` of the handlers that
are run. A name that is not among them is refused at start, and so is what the code would be refused for.
"""


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
