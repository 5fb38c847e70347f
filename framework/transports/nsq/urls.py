"""What a broker URL of NSQ says: which nsqds, which nsqlookupds, which options. Nothing is looked up here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from framework.errors import BadSetting
from framework.transports import addresses
from framework.transports.addresses import join_address, split_address
from framework.transports.nsq import wire

__all__ = ["Addresses", "Options", "join_address", "read", "split_address"]

NSQD_PORT = 4150
LOOKUPD_PORT = 4161
_PORTS = {"nsq": NSQD_PORT, "nsq+lookupd": LOOKUPD_PORT}
_OPTIONS = ("heartbeat", "max_msg_size", "max_body_size", "http_port")


@dataclass(frozen=True, slots=True)
class Options:
    """The query parameters. Times in seconds, sizes in bytes."""

    heartbeat: float = 30.0
    """How often nsqd sends a heartbeat (IDENTIFY heartbeat_interval); a peer silent for two is dead."""
    max_msg_size: int = wire.MAX_MESSAGE
    """The --max-msg-size of the nsqds: larger bodies are refused before they are sent."""
    max_body_size: int = wire.MAX_BODY
    """The --max-body-size of the nsqds: what one MPUB may hold."""
    http_port: int = 0
    """Where the nsqds answer HTTP; 0: on the port after the one of their address, as nsqd does by default."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Every broker URL given, read. Addresses as ``host:port``, IPv6 hosts in brackets."""

    nsqds: tuple[str, ...]
    lookupds: tuple[str, ...]
    options: Options


def read(urls: Sequence[str]) -> Addresses:
    """Read ``nsq://host[:4150][,…]`` and ``nsq+lookupd://host[:4161][,…]``, with ``?heartbeat=30s`` and the like.

    Raises BadSetting naming the URL and the fix.
    """
    found: dict[str, dict[str, None]] = {scheme: {} for scheme in _PORTS}  # dicts: no doubles, in order
    for url in urls:
        scheme = url.partition("://")[0]
        found[scheme].update(dict.fromkeys(addresses.hosts(url, _PORTS[scheme], broker="NSQ")))
    options = addresses.options(urls, _OPTIONS)
    return Addresses(tuple(found["nsq"]), tuple(found["nsq+lookupd"]), _options(options))


def _options(given: dict[str, str]) -> Options:
    default = Options()
    return Options(
        heartbeat=_heartbeat(given["heartbeat"]) if "heartbeat" in given else default.heartbeat,
        max_msg_size=addresses.size("max_msg_size", given, default.max_msg_size),
        max_body_size=addresses.size("max_body_size", given, default.max_body_size),
        http_port=_port("http_port", given, default.http_port),
    )


def _heartbeat(text: str) -> float:
    seconds = addresses.seconds(text) or 0.0
    if not 1 <= seconds <= 60:
        raise BadSetting(f"heartbeat={text!r} in a broker URL: nsqd takes 1s to 60s, such as heartbeat=30s")
    return seconds


def _port(name: str, given: dict[str, str], default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,5}", text) or not 1 <= int(text) <= 65535:
        raise BadSetting(f"{name}={text!r} in a broker URL: write a port from 1 to 65535, such as {name}={NSQD_PORT + 1}")
    return int(text)
