"""What broker URLs of every scheme have in common: addresses before the ``?``, options after it. Nothing is looked up here.

Each function raises BadSetting, in one sentence that names the URL or the option, and the fix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from urllib.parse import parse_qsl, urlsplit

from framework import durations
from framework.errors import BadSetting, shown

_HOST = re.compile(r"\[[0-9a-fA-F:.%a-zA-Z0-9]+\]|[^\[\]:/\s]+")


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` -> its parts, the brackets of an IPv6 host taken off."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_address(host: str, port: int) -> bool:
    """Whether a name server may be asked for ``host``, and ``port`` is one. ``host`` may be an IPv6 address, without brackets."""
    if not 1 <= port <= 65535 or not host.isprintable() or re.search(r"[\s/\[\]]", host):
        return False
    try:
        return bool(host.encode("idna"))  # as it is encoded to be looked up: no label is empty or longer than 63
    except UnicodeError:
        return False


def without_login(url: str) -> str:
    """``url`` for a message: what stands before an @, a password perhaps, is left out."""
    return re.sub(r"(?<=://).*@", "…@", url)


def split_login(url: str) -> tuple[str | None, str]:
    """What stands before an @, as it is written there, None without one; and the URL without it."""
    scheme, _, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    said, at, bare = authority.rpartition("@")
    return (said, f"{scheme}://{rest.replace(authority, bare, 1)}") if at else (None, url)


def hosts(url: str, default_port: int, *, broker: str) -> list[str]:
    """The addresses of ``scheme://host[:port][,host…]``, as ``host:port``. ``broker``: what has no user and password."""
    rest = url.partition("://")[2]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        shown = url.replace(authority, "…@" + authority.rpartition("@")[2])
        raise BadSetting(f"broker URL {shown!r}: {broker} has no user and password; leave out what is before the @")
    parts = urlsplit("//" + rest.replace(authority, "host", 1))
    if parts.path not in ("", "/") or parts.fragment:
        raise BadSetting(f"broker URL {url!r}: nothing may follow the address but ?options; topics are named by handlers")
    return [_address(url, one, default_port) for one in authority.split(",")]


def _address(url: str, text: str, default_port: int) -> str:
    host = _HOST.match(text)
    if host is None or not is_address(host[0].strip("[]"), default_port):
        raise BadSetting(f"broker URL {url!r}: {text!r} is not an address; write host:{default_port} or [::1]:{default_port}")
    port = text[host.end() :]
    if port in ("", ":"):
        return f"{host[0]}:{default_port}"
    if not re.fullmatch(r":\d{1,5}", port) or not 1 <= int(port[1:]) <= 65535:
        raise BadSetting(f"broker URL {url!r}: {text!r} must end with a port from 1 to 65535, such as :{default_port}")
    return f"{host[0]}:{int(port[1:])}"


def options(urls: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """The options of all ``urls`` together: name -> text. One that two URLs give must be the same in both."""
    given: dict[str, str] = {}
    for url in urls:
        for name, value in _parameters(url, known):
            if given.setdefault(name, value) != value:
                raise BadSetting(f"broker URL {url!r}: {name} is {given[name]!r} in another URL; give one value for all")
    return given


def _parameters(url: str, known: Sequence[str]) -> list[tuple[str, str]]:
    query = url.partition("?")[2].partition("#")[0]
    pairs = parse_qsl(query, keep_blank_values=True)
    for name, _ in pairs:
        if name not in known:
            near = get_close_matches(name, known, 1, 0.4) or [", ".join(known)]
            raise BadSetting(f"broker URL {url!r}: there is no option {name!r}; did you mean {near[0]}?")
    return pairs


def size(name: str, given: Mapping[str, str], default: int, unit: str = "bytes") -> int:
    """The option ``name`` as a number of ``unit``, from 1 up."""
    text = given.get(name, str(default))
    if not re.fullmatch(r"[1-9]\d{0,9}", text):
        raise BadSetting(f"{name}={shown(text)} in a broker URL: write a number of {unit}, such as {name}={default}")
    return int(text)


def seconds(name: str, given: Mapping[str, str], default: float, least: float, most: float) -> float:
    """The option ``name`` as a time, within bounds."""
    if name not in given:
        return default
    read = durations.seconds(given[name])
    if read is None or not least <= read <= most:
        wrong = shown(given[name])
        raise BadSetting(f"{name}={wrong} in a broker URL: write {least:g}s to {most:g}s, such as {name}={default:g}s")
    return read
