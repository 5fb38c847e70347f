"""Command lines as Go's flag package reads them (``-x v``, ``--x=v``, ``--bool``, last one wins), for any table of flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from framework.errors import WrongUse
from framework.markdown import filled, item
from framework.nsqd import golang

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


class BadFlag(WrongUse):
    """A flag that the program does not have, or a value that is not of its type. The command exits with 2, as nsqd does."""


@dataclass(kw_only=True)
class CommonOptions:
    """What every one of NSQ's daemons is told."""

    log_level: str = "INFO"
    log_prefix: str = ""
    max_tcp_connections: int = 0
    max_http_connections: int = 0
    """0: as many as open files allow."""
    max_body_memory: int = 128 << 20
    http_allow_hosts: list[str] = field(default_factory=list)
    version: bool = False
    help: bool = False
    warnings: list[str] = field(default_factory=list)
    """What was asked for and is not here, one sentence each."""


class Flag(NamedTuple):
    """``attribute`` None: the real program has it, and it has no effect here."""

    parse: Callable[[str], Any]
    attribute: str | None
    usage: str
    repeated: bool = False
    """Each use adds one to a list."""
    bare: bool = False
    """It may stand without a value, as booleans may."""


def boolean(text: str) -> bool:
    """Raises ValueError."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ValueError(f"{text!r} is not true or false")


def level(text: str) -> str:
    """Raises ValueError."""
    found = {"WARN": "WARNING"}.get(text.upper(), text.upper())
    if found not in LEVELS:
        raise ValueError(f"{text!r} is not one of debug, info, warn, error, fatal")
    return found


def _count(text: str) -> int:
    """Raises ValueError."""
    if (found := golang.whole(text)) < 1:
        raise ValueError("it must be at least 1")
    return found


COMMON: dict[str, Flag] = {
    "max-tcp-connections": Flag(_count, "max_tcp_connections", "connections over TCP at a time; others wait (not in nsqd)"),
    "max-http-connections": Flag(_count, "max_http_connections", "connections over HTTP at a time; others wait (not in nsqd)"),
    "max-body-memory": Flag(
        _count, "max_body_memory", "bytes of bodies that are being received; clients with more wait (not in nsqd)"
    ),
    "http-allow-host": Flag(
        str,
        "http_allow_hosts",
        "host that requests to a loopback address may name, and whose web pages may POST; *: any (may be repeated)",
        repeated=True,
    ),
    "version": Flag(boolean, "version", "print version string"),
    "log-level": Flag(level, "log_level", "set log verbosity: debug, info, warn, error, or fatal"),
    "log-prefix": Flag(str, "log_prefix", "log message prefix"),
    "verbose": Flag(boolean, None, "accepted, has no effect"),
}
_SILENT = ("verbose", "worker-id")
"""The real programs too take these for old times' sake only."""


def parse(arguments: Sequence[str], flags: Mapping[str, Flag], options: CommonOptions) -> None:
    """Set in ``options`` what the arguments say. Raises BadFlag."""
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        name, given, value = word.removeprefix("-").removeprefix("-").partition("=")
        if name in ("h", "help"):
            options.help = True
            return
        if name not in flags:
            raise BadFlag(f"flag provided but not defined: -{name}")
        _set(options, name, flags[name], value if given else _value(name, flags[name], rest))


def _value(name: str, flag: Flag, rest: list[str]) -> str:
    if flag.bare or flag.parse is boolean:
        return "true"
    if not rest:
        raise BadFlag(f"flag needs an argument: -{name}")
    return rest.pop(0)


def _set(options: CommonOptions, name: str, flag: Flag, text: str) -> None:
    try:
        value = flag.parse(text)
    except ValueError as error:
        raise BadFlag(f'invalid value "{text}" for flag -{name}: {error}') from None
    if flag.attribute is None:
        if value and name not in _SILENT:
            options.warnings.append(f"-{name} has no effect here")
    elif flag.repeated:
        getattr(options, flag.attribute).append(value)
    else:
        setattr(options, flag.attribute, value)


def usage(program: str, flags: Mapping[str, Flag]) -> str:
    """What --help prints."""
    lines = [f"  -{name}\n    \t{flag.usage}" for name, flag in sorted(flags.items())]
    return f"Usage of {program}:\n" + "\n".join(lines)


_VARIES = {"max-tcp-connections": "as open files allow", "max-http-connections": "as open files allow"}


def as_markdown(flags: Mapping[str, Flag], options: CommonOptions, varies: Mapping[str, str]) -> str:
    """A list for docs/nsqd.md. ``options``: made without arguments, for the defaults; ``varies``: those that need words."""
    words = {**_VARIES, **varies}
    items = [
        item(f"`--{name}` ({words.get(name) or _shown(getattr(options, flag.attribute))}): {_in_markdown(flag.usage)}.")
        for name, flag in sorted(flags.items())
        if flag.attribute is not None
    ]
    silent = ", ".join(f"`--{name}`" for name, flag in sorted(flags.items()) if flag.attribute is None)
    return "\n".join([*items, "", filled(f"Accepted, without effect: {silent}."), ""])


def _in_markdown(usage: str) -> str:
    return (usage[0].upper() + usage[1:]).replace("<addr>:<port>", "`<addr>:<port>`")


def _shown(value: Any) -> str:
    """Numbers with a fraction are seconds."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}s" if value >= 1 or not value else f"{1000 * value:g}ms"
    return str(value or ("none" if value is None or isinstance(value, (str, list)) else value)).strip()
