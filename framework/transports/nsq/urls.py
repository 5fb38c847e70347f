"""What a broker URL of NSQ says: which nsqds, which nsqlookupds, which options. Nothing is looked up here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from urllib.parse import parse_qsl, urlsplit

from framework.errors import BadSetting
from framework.transports.nsq import wire

NSQD_PORT = 4150
LOOKUPD_PORT = 4161
_PORTS = {"nsq": NSQD_PORT, "nsq+lookupd": LOOKUPD_PORT}
_HOST = re.compile(r"\[[0-9a-fA-F:.%a-zA-Z0-9]+\]|[^\[\]:/\s]+")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0}
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
    options: dict[str, str] = {}
    for url in urls:
        scheme, _, rest = url.partition("://")
        found[scheme].update(dict.fromkeys(_hosts(url, rest, _PORTS[scheme])))
        for name, value in _parameters(url):
            if options.setdefault(name, value) != value:
                raise BadSetting(f"broker URL {url!r}: {name} is {options[name]!r} in another URL; give one value for all")
    return Addresses(tuple(found["nsq"]), tuple(found["nsq+lookupd"]), _options(options))


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` -> its parts, the brackets of an IPv6 host taken off."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hosts(url: str, rest: str, default_port: int) -> list[str]:
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in place:
        shown = url.replace(place, "…@" + place.rpartition("@")[2])
        raise BadSetting(f"broker URL {shown!r}: NSQ has no user and password; leave out what is before the @")
    parts = urlsplit("//" + rest.replace(place, "host", 1))
    if parts.path not in ("", "/") or parts.fragment:
        raise BadSetting(f"broker URL {url!r}: nothing may follow the address but ?options; topics are named by handlers")
    return [_address(url, one, default_port) for one in place.split(",")]


def _address(url: str, text: str, default_port: int) -> str:
    host = _HOST.match(text)
    if host is None:
        raise BadSetting(f"broker URL {url!r}: {text!r} is not an address; write host:{default_port} or [::1]:{default_port}")
    port = text[host.end() :]
    if port in ("", ":"):
        return f"{host[0]}:{default_port}"
    if not re.fullmatch(r":\d{1,5}", port) or not 1 <= int(port[1:]) <= 65535:
        raise BadSetting(f"broker URL {url!r}: {text!r} must end with a port from 1 to 65535, such as :{default_port}")
    return f"{host[0]}:{int(port[1:])}"


def _parameters(url: str) -> list[tuple[str, str]]:
    query = url.partition("?")[2].partition("#")[0]
    pairs = parse_qsl(query, keep_blank_values=True)
    for name, _ in pairs:
        if name not in _OPTIONS:
            near = get_close_matches(name, _OPTIONS, 1, 0.4) or [", ".join(_OPTIONS)]
            raise BadSetting(f"broker URL {url!r}: there is no option {name!r}; did you mean {near[0]}?")
    return pairs


def _options(given: dict[str, str]) -> Options:
    default = Options()
    return Options(
        heartbeat=_heartbeat(given["heartbeat"]) if "heartbeat" in given else default.heartbeat,
        max_msg_size=_size("max_msg_size", given, default.max_msg_size),
        max_body_size=_size("max_body_size", given, default.max_body_size),
        http_port=_port("http_port", given, default.http_port),
    )


def _heartbeat(text: str) -> float:
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 1 <= seconds <= 60:
        raise BadSetting(f"heartbeat={text!r} in a broker URL: nsqd takes 1s to 60s, such as heartbeat=30s")
    return seconds


def _size(name: str, given: dict[str, str], default: int) -> int:
    text = given.get(name, str(default))
    if not re.fullmatch(r"[1-9]\d{0,9}", text):
        raise BadSetting(f"{name}={text!r} in a broker URL: write a number of bytes, such as {name}={default}")
    return int(text)


def _port(name: str, given: dict[str, str], default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,5}", text) or not 1 <= int(text) <= 65535:
        raise BadSetting(f"{name}={text!r} in a broker URL: write a port from 1 to 65535, such as {name}={NSQD_PORT + 1}")
    return int(text)
