"""The options of ``format("nsq")``: every name and value is checked, and a wrong one is answered with the right one.

Names are Spark's way, camelCase, and not case-sensitive.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from framework import names
from framework.errors import BadSetting, WrongUse
from framework.markdown import item
from framework.spark.advice import OF_BATCH, Advice
from framework.spool.root import root_of
from framework.spool.seen import REMEMBER, WINDOW
from framework.spool.storage import Location

_NO_REPLAY = (
    "NSQ cannot replay: a query begins with what the spool holds, startingOffsets is earliest or latest of the spool, and "
    "startingTimestamp a time in it"
)
_ELSEWHERE = {
    "subscribe": "say topic (and channel, which NSQ has in place of a consumer group)",
    "subscribepattern": "say topic: one query reads one topic's channel",
    "assign": "say topic: NSQ has no partitions",
    "kafka.bootstrap.servers": "say nsqdTcpAddresses or lookupdHttpAddresses",
    "kafka.group.id": "say channel",
    "groupidprefix": "say channel",
    "maxoffsetspertrigger": "say maxMessagesPerTrigger",
    "path": "say spoolDir for the source; the sink has a topic and no path",
    "startingoffsetsbytimestamp": "say startingTimestamp",
    "endingoffsets": _NO_REPLAY,
    "endingtimestamp": _NO_REPLAY,
    "endingoffsetsbytimestamp": _NO_REPLAY,
}
_SCHEMES = {"nsqdTcpAddresses": "nsq://", "lookupdHttpAddresses": "nsq+lookupd://", "broker": ""}
_EMBEDDED_ONLY = (
    *_SCHEMES, "topic", "channel", "dedupeTime", "nodeIds", "maxInFlight", "maxSpoolBytes", "segmentMaxMessages", "segmentLinger",
)  # fmt: skip
_LAST_TIME = 2**63 - 1
"""Nanoseconds since 1970, as segments can have them: in the year 2262."""
_BELOW_MICROSECONDS = re.compile(r"[.,][0-9]{6}([0-9]{1,3})([0-9]*)(?=[Zz+-])")
"""The digits of a second behind the sixth: of nanoseconds, and of less than those."""
_SPARKS_OWN = {"checkpointlocation", "queryname"}


def _text(name: str, value: str) -> str:
    if not value.strip():
        raise BadSetting(f"option {name} is empty")
    return value.strip()


def _folder(name: str, value: str) -> Location:
    try:
        root = root_of(_text(name, value))
    except WrongUse as error:
        raise BadSetting(f"option {name}: {error}") from None
    return Path(os.path.abspath(root)) if isinstance(root, Path) else root


def _whole(name: str, value: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,17}", value.strip()):
        raise BadSetting(f"option {name}={value!r}: a whole number of at least 1 is needed")
    return int(value)


def _flag(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise BadSetting(f"option {name}={value!r}: true or false is needed")
    return value.strip().lower() == "true"


def _seconds(name: str, value: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s)", value.strip())
    if match is None:
        raise BadSetting(f"option {name}={value!r}: a duration such as 250ms or 2s is needed")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, value: str) -> str:
        if value.strip().lower() not in choices:
            raise BadSetting(f"option {name}={value!r}: {' or '.join(choices)} is needed")
        return value.strip().lower()

    return parse


def _starting(name: str, value: str) -> str:
    if value.strip().lower() not in ("earliest", "latest"):
        raise BadSetting(f"option {name}={value!r}: {_NO_REPLAY}")
    return value.strip().lower()


def _instant(name: str, value: str) -> int:
    """Nanoseconds since 1970, as segments have them: the first from then on."""
    try:
        at = datetime.fromisoformat(value.strip())
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise BadSetting(f"option {name}={value!r}: a time with its zone is needed, such as 2024-06-01T00:00:00Z")
    passed = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    if below := _BELOW_MICROSECONDS.search(value):  # which Python reads over
        passed += int(below[1].ljust(3, "0")) + bool(below[2].strip("0"))
    return max(-_LAST_TIME, min(passed, _LAST_TIME))


def _addresses(name: str, value: str) -> tuple[str, ...]:
    found = tuple(one.strip() for one in value.split(",") if one.strip())
    for one in found:
        if not re.fullmatch(r"([^\s:/@]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}", one):
            raise BadSetting(f"option {name}={value!r}: {one!r} is not host:port")
    if not found:
        raise BadSetting(f"option {name} is empty: host:port is needed, several with commas between")
    return found


def _brokers(name: str, value: str) -> tuple[str, ...]:
    urls = tuple(value.split())
    if not urls:
        raise BadSetting(f"option {name} is empty: a broker URL is needed, such as nsq://host:4150, several with spaces between")
    # Here, so that an executor need not have gevent to read rows.
    from framework.transports import open_transports  # noqa: PLC0415

    open_transports(urls)  # which connects to nothing, and says what is wrong with a URL
    return urls


def _topic(name: str, value: str) -> str:
    return names.check("topic", value)


def _channel(name: str, value: str) -> str:
    return names.check("channel", value)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: how its text becomes a value, and what it is for."""

    name: str
    parse: Callable[[str, str], Any]
    about: str


WHERE = [
    Option("nsqdTcpAddresses", _addresses, "the nsqds, host:port with commas between"),
    Option("lookupdHttpAddresses", _addresses, "the nsqlookupds that know the nsqds, host:port with commas between"),
    Option("broker", _brokers, "in place of these two, URLs of any kind of broker, as `workers run --broker` takes them"),
    Option("topic", _topic, "the topic to consume, or to write to; a sink may have a column `topic` in its place"),
]
BATCH_READ = [
    Option("spoolDir", _folder, "the spool's folder; on storage that every executor sees, or a URL such as s3://bucket/orders"),
    Option(
        "collector",
        _one_of("embedded", "external"),
        "`embedded`: the query fills the spool itself; `external`: other processes do (embedded)",
    ),
    Option("minPartitions", _whole, "the least partitions of a batch, however few its rows are; default: see `parallelism`"),
    Option(
        "parallelism",
        _whole,
        "the tasks that can run at once: without `minPartitions` a batch has as many partitions, fewer under 1,000 rows each; "
        "on a cluster say spark.sparkContext.defaultParallelism (the driver's cores)",
    ),
    Option("maxRecordsPerPartition", _whole, "the most rows in a partition (250000)"),
    Option("failOnDataLoss", _flag, "fail when rows that were planned, or the spool itself, are gone (true)"),
]
STREAM_READ = [
    *BATCH_READ,
    *WHERE,
    Option("channel", _channel, "the channel that the embedded collector consumes"),
    Option("maxMessagesPerTrigger", _whole, "the most rows in a micro-batch; default: all there are"),
    Option("startingOffsets", _starting, "earliest or latest of the spool, for a query without a checkpoint (earliest)"),
    Option(
        "startingTimestamp",
        _instant,
        "in place of it: the first row in each collector's order that its broker took then or later, such as "
        "2024-06-01T00:00:00Z, to the nanosecond; rows of before may lie behind it",
    ),
    Option(
        "retention",
        _one_of("commit", "keep"),
        "`commit` deletes what is committed, `keep` nothing (embedded: commit, external: keep)",
    ),
    Option(
        "dedupeWindow",
        _whole,
        "how many message ids the embedded collector remembers at the least, "
        f"and how many of the newest rows `retention=commit` leaves ({WINDOW})",
    ),
    Option(
        "dedupeTime",
        _seconds,
        "for how long it remembers them at the least, and how much `retention=commit` leaves: three leases of the broker or more "
        f"({REMEMBER:.0f}s)",
    ),
    Option(
        "nodeIds",
        _flag,
        "each nsqd has a `--node-id` of its own, so that a message is known also where it comes again from another address "
        "(false)",
    ),
    Option("maxInFlight", _whole, "the most messages received and not yet durable (5000)"),
    Option(
        "maxSpoolBytes",
        _whole,
        "a spool that holds as much takes nothing more, and messages stay at the broker, until some of it is deleted (no limit)",
    ),
    Option("segmentMaxMessages", _whole, "the most messages in a segment (2500)"),
    Option("segmentLinger", _seconds, "how long a segment waits to fill (250ms)"),
]
WRITE = [
    *WHERE,
    Option("mpubMaxMessages", _whole, "the most messages in one MPUB (500)"),
    Option(
        "idempotencyKey",
        _flag,
        "each message carries a key in its header `idempotency-key` (where the broker carries headers, as NSQ does with "
        "`headers=true` in `broker`)",
    ),
]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The source's options, checked. Times in seconds."""

    spool_dir: Location
    embedded: bool
    urls: tuple[str, ...]
    topic: str
    channel: str
    min_partitions: int | None
    parallelism: int | None
    max_records: int
    max_messages: int | None
    from_latest: bool
    from_time: int | None
    """Nanoseconds since 1970."""
    fail_on_data_loss: bool
    trim: bool
    dedupe_window: int
    dedupe_time: float
    max_in_flight: int
    max_spool_bytes: int | None
    node_ids: bool
    segment_max_messages: int
    segment_linger: float
    columns: tuple[str, ...] | None = None
    """Those that the query's schema names; None: all."""
    advice: Advice = OF_BATCH


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The sink's options, checked."""

    urls: tuple[str, ...]
    topic: str | None
    mpub_max_messages: int
    keys: bool
    """Each message carries one."""
    without_keys: str = ""
    """What to change where none does."""


def as_markdown(options: Iterable[Option]) -> str:
    """The options as a list in Markdown, for the documentation."""
    return "\n".join(item(f"`{option.name}`: {option.about}") for option in options)


def check_any(given: Mapping[str, str]) -> None:
    """Check names and values against everything the source knows; Spark calls it as early as ``load()``."""
    _parsed(given, STREAM_READ)


def batch_read(given: Mapping[str, str]) -> ReadOptions:
    """The options of ``spark.read``. Raises BadSetting."""
    only_streams = {option.name.lower(): option.name for option in STREAM_READ}
    for option in BATCH_READ:
        only_streams.pop(option.name.lower())
    for name in given:
        if name.lower() in only_streams:
            raise BadSetting(
                f"option {only_streams[name.lower()]} is for readStream; spark.read reads what the spool holds: leave it out"
            )
    values = _parsed(given, BATCH_READ)
    if values.get("collector") == "embedded":
        raise BadSetting("option collector='embedded' is for readStream; spark.read reads what the spool holds: leave it out")
    return _read_options({**values, "collector": "external"})


def stream_read(given: Mapping[str, str]) -> ReadOptions:
    """The options of ``spark.readStream``. Raises BadSetting."""
    values = _parsed(given, STREAM_READ)
    embedded = values.get("collector", "embedded") == "embedded"
    needed = ("topic", "channel") if embedded else ()
    for name in needed:
        if name not in values:
            raise BadSetting(
                f"option {name} is missing: the embedded collector consumes a channel of a topic "
                "(or say collector=external to read a spool that others fill)"
            )
    if not embedded:
        _refuse_useless(values)
    return _read_options(values)


def _refuse_useless(values: Mapping[str, Any]) -> None:
    """What only an embedded collector, or only ``retention=commit``, looks at."""
    for name in _EMBEDDED_ONLY:
        if name in values:
            raise BadSetting(f"option {name} has no effect with collector=external: leave it out, or say collector=embedded")
    if "dedupeWindow" in values and values.get("retention", "keep") == "keep":
        raise BadSetting("option dedupeWindow has no effect with collector=external and retention=keep: leave it out")


def write(given: Mapping[str, str]) -> WriteOptions:
    """The options of ``write`` and ``writeStream``. Raises BadSetting."""
    values = _parsed({name: value for name, value in given.items() if name.lower() not in _SPARKS_OWN}, WRITE)
    missing = "leave idempotencyKey=false out" if values.get("idempotencyKey") is False else _without_headers(values)
    if missing and values.get("idempotencyKey"):
        raise BadSetting(f"option idempotencyKey=true: this broker carries no headers: {missing}")
    return WriteOptions(_urls(values), values.get("topic"), values.get("mpubMaxMessages", 500), not missing, missing)


def _without_headers(values: Mapping[str, Any]) -> str:
    """What to change so that messages carry headers; empty where they do."""
    if "broker" not in values:
        return "name the broker as option broker, nsq://host:4150?headers=true, here and at its readers"
    from framework.transports import open_transports  # noqa: PLC0415

    lacking = [one.capabilities for one in open_transports(values["broker"]) if not one.capabilities.headers]
    return (lacking[0].with_headers or "use a broker that carries headers") if lacking else ""


def _read_options(values: Mapping[str, Any]) -> ReadOptions:
    if "spoolDir" not in values:
        raise BadSetting("option spoolDir is missing: the folder of the spool to read")
    embedded = values.get("collector", "embedded") == "embedded"
    in_flight = values.get("maxInFlight", 5000)
    segment = values.get("segmentMaxMessages", min(2500, in_flight))
    if segment > in_flight:
        raise BadSetting(f"option segmentMaxMessages={segment} can never fill with maxInFlight={in_flight}: raise maxInFlight")
    if "startingOffsets" in values and "startingTimestamp" in values:
        raise BadSetting("startingOffsets and startingTimestamp say two beginnings: leave one out")
    return ReadOptions(
        spool_dir=values["spoolDir"],
        embedded=embedded,
        urls=_urls(values) if embedded else (),
        topic=values.get("topic", ""),
        channel=values.get("channel", ""),
        min_partitions=values.get("minPartitions"),
        parallelism=values.get("parallelism"),
        max_records=values.get("maxRecordsPerPartition", 250_000),
        max_messages=values.get("maxMessagesPerTrigger"),
        from_time=values.get("startingTimestamp"),
        from_latest=values.get("startingOffsets", "earliest") == "latest",
        fail_on_data_loss=values.get("failOnDataLoss", True),
        trim=values.get("retention", "commit" if embedded else "keep") == "commit",
        dedupe_window=values.get("dedupeWindow", WINDOW),
        dedupe_time=values.get("dedupeTime", REMEMBER),
        max_in_flight=in_flight,
        max_spool_bytes=values.get("maxSpoolBytes"),
        node_ids=values.get("nodeIds", False),
        segment_max_messages=segment,
        segment_linger=values.get("segmentLinger", 0.25),
    )


def _urls(values: Mapping[str, Any]) -> tuple[str, ...]:
    given = [f"{scheme}{address}" for name, scheme in _SCHEMES.items() for address in values.get(name, ())]
    if len(values.keys() & _SCHEMES.keys()) != 1:
        raise BadSetting(f"exactly one of the options {', '.join(_SCHEMES)} is needed")
    return tuple(given)


def _parsed(given: Mapping[str, str], options: Iterable[Option]) -> dict[str, Any]:
    known = {option.name.lower(): option for option in options}
    values = {}
    for name, value in given.items():
        option = known.get(name.lower())
        if option is None:
            raise BadSetting(_unknown(name, known))
        values[option.name] = option.parse(option.name, value)
    return values


def _unknown(name: str, known: Mapping[str, Option]) -> str:
    if name.lower() in _ELSEWHERE:
        return f"option {name} is not one of format nsq: {_ELSEWHERE[name.lower()]}"
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    if near:
        return f"option {name} is unknown to format nsq; did you mean {known[near[0]].name}?"
    return f"option {name} is unknown to format nsq, which has {', '.join(option.name for option in known.values())}"
