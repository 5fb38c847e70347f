"""/config: the options of a running nsqd by name, and the two of them that can be changed. Source: nsqd v1.3.0 doConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec

from framework.decoding import UNREADABLE
from framework.nsqd.goflags import LEVELS
from framework.nsqd.options import FLAGS, Options
from framework.nsqd.status import Status
from framework.nsqd.web import Answer

_NAMES = {"node-id": "id", "lookupd-tcp-address": "nsqlookupd_tcp_addresses", "auth-http-address": "auth_http_addresses"}
"""Flags whose option is not called as they are."""
_OURS = (
    "version", "while-used", "drain-to", "drain-all-channels", "verify", "inspect", "json", "backup",
    "topic-quota", "topic-max-age",
    "max-tcp-connections", "max-http-connections", "max-body-memory", "http-allow-host",
)  # fmt: skip
_LEVELS = {"debug": "DEBUG", "info": "INFO", "warn": "WARNING", "error": "ERROR", "fatal": "FATAL"}
_ATTRIBUTES = {
    _NAMES.get(name, name.replace("-", "_")): flag.attribute
    for name, flag in FLAGS.items()
    if flag.attribute is not None and name not in _OURS
}


def get(options: Options, name: str) -> Answer:
    """As nsqd gives it: durations in ns, the log level as a number. Raises Status."""
    attribute = _ATTRIBUTES.get(name)
    if attribute is None:
        raise Status(400, "INVALID_OPTION")
    value: Any = getattr(options, attribute)
    if name == "log_level":
        value = LEVELS.index(value) + 1
    elif isinstance(value, float):
        value = round(value * 1e9)
    elif isinstance(value, Path):
        value = str(value)
    return cast(Answer, value)


def put(options: Options, name: str, body: bytes) -> None:
    """Change it in ``options``. Raises Status."""
    if not 0 < len(body) <= options.max_msg_size:
        raise Status(413, "INVALID_VALUE")
    try:
        if name == "nsqlookupd_tcp_addresses":
            options.lookupd_tcp_addresses = msgspec.json.decode(body, type=list[str] | None) or []
        elif name == "log_level":
            options.log_level = _LEVELS[body.decode().lower()]
        else:
            raise Status(400, "INVALID_OPTION")
    except (*UNREADABLE, KeyError):
        raise Status(400, "INVALID_VALUE") from None
