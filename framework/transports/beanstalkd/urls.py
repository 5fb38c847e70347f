"""What a broker URL of beanstalkd says: which servers, which options, which tubes a topic has. Nothing is looked up here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from framework import durations, names
from framework.errors import BadName, BadSetting, WrongUse
from framework.transports import addresses
from framework.transports.beanstalkd import wire

PORT = 11300
_OPTIONS = ("ttr", "max_job_size", "fanout", "headers")


@dataclass(frozen=True, slots=True)
class Options:
    """The query parameters."""

    ttr: int = 60
    """Seconds to run of what is published, where no handler of it is known."""
    max_job_size: int = wire.MAX_JOB
    """The -z of the servers in bytes: larger bodies are refused before they are sent."""
    fanout: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Topic -> its channels, each of which gets a copy in a tube of its own."""
    headers: bool = False
    """Headers of messages, in an envelope around the body."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Every broker URL given, read. Addresses as ``host:port``, IPv6 hosts in brackets."""

    nodes: tuple[str, ...]
    options: Options


def read(urls: Sequence[str]) -> Addresses:
    """Read ``beanstalkd://host[:11300][,…]``, with ``?ttr=60s`` and the like. Raises BadSetting naming the URL and the fix."""
    nodes: dict[str, None] = {}  # no doubles, in order
    for url in urls:
        nodes.update(dict.fromkeys(addresses.hosts(url, PORT, broker="beanstalkd")))
    given = addresses.options(urls, _OPTIONS)
    default = Options()
    return Addresses(
        tuple(nodes),
        Options(
            ttr=_ttr(given["ttr"]) if "ttr" in given else default.ttr,
            max_job_size=_job_size(given),
            fanout=_fanout(given["fanout"]) if "fanout" in given else default.fanout,
            headers=_headers(given["headers"]) if "headers" in given else default.headers,
        ),
    )


def tube_of(topic: str, channel: str, options: Options) -> str:
    """Where ``channel`` finds the messages of ``topic``: in the tube ``topic``, or in its own where the topic fans out."""
    return f"{topic}/{channel}" if topic in options.fanout else topic


def tubes_of(topic: str, options: Options) -> list[str]:
    """Where a message of ``topic`` is put."""
    return [f"{topic}/{channel}" for channel in options.fanout.get(topic, ())] or [topic]


def accept(topic: str, channels: Collection[str], options: Options) -> None:
    """``contract.Transport.accept``."""
    known = options.fanout.get(topic)
    if known is not None:
        strangers = sorted(set(channels) - set(known))
        if strangers:
            raise WrongUse(
                f"topic {topic!r}, channel {strangers[0]!r}: fanout= of the broker URL makes no copy for it; "
                f"add {topic}/{strangers[0]} to it, at the publishers too"
            )
    elif len(channels) > 1:
        pairs = ",".join(f"{topic}/{channel}" for channel in sorted(channels))
        raise WrongUse(
            f"topic {topic!r} has the channels {_listed(channels)}, but beanstalkd has none: each message would reach only one "
            f"of them; publish to both by fanout={pairs} in the broker URL, here and at the publishers"
        )
    for channel in channels or [""]:
        check(tube_of(topic, channel, options), topic)


def check(tube: str, topic: str) -> None:
    """Raises BadName when beanstalkd takes no ``tube``."""
    if not wire.is_tube(tube):
        what = f"topic {topic!r}" if tube == topic else f"topic {topic!r}: its tube {tube!r}"
        raise BadName(
            f"{what} is no name for beanstalkd: use a-z A-Z 0-9 . _ - + / ; $ ( ), not - first (it has no {names.EPHEMERAL!r})"
        )


def _listed(channels: Collection[str]) -> str:
    return " and ".join(sorted(channels))


def _ttr(text: str) -> int:
    seconds = durations.seconds(text) or 0.0
    if not (1 <= seconds <= wire.MAX_NUMBER and seconds == int(seconds)):
        raise BadSetting(f"ttr={text!r} in a broker URL: beanstalkd takes whole seconds from 1s, such as ttr=60s")
    return int(seconds)


def _headers(text: str) -> bool:
    if text not in ("true", "false"):
        raise BadSetting(f"headers={text!r} in a broker URL: write true or false")
    return text == "true"


def _job_size(given: Mapping[str, str]) -> int:
    size = addresses.size("max_job_size", given, wire.MAX_JOB)
    if size > wire.MAX_BODY:
        raise BadSetting(f"max_job_size={size} in a broker URL: beanstalkd's -z goes up to {wire.MAX_BODY} bytes")
    return size


def _fanout(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for pair in text.split(","):
        topic, slash, channel = pair.partition("/")
        if not (slash and names.is_valid(topic) and names.is_valid(channel)):
            raise BadSetting(
                f"fanout={text!r} in a broker URL: {pair!r} is no topic/channel; write fanout=orders/billing,orders/shipping"
            )
        check(f"{topic}/{channel}", topic)
        found.setdefault(topic, {})[channel] = None
    return {topic: tuple(channels) for topic, channels in found.items()}
