"""Finds the transport of a broker URL by its scheme; the only place that knows which transports exist."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from framework.errors import BadSetting
from framework.transports.contract import Transport

_MODULES = {
    "nsq": "framework.transports.nsq.transport",
    "nsq+tls": "framework.transports.nsq.transport",
    "nsq+unix": "framework.transports.nsq.transport",
    "nsq+lookupd": "framework.transports.nsq.transport",
    "nsq+lookupd+https": "framework.transports.nsq.transport",
    "memory": "framework.transports.memory.transport",
}


def open_transports(urls: Sequence[str]) -> list[Transport]:
    """One transport for each family of schemes among ``urls``; no connection is made yet.

    Each transport module has ``open(urls) -> Transport``. Raises BadSetting for a URL it cannot use.
    """
    families: dict[str, list[str]] = {}
    for url in urls:
        scheme = url.partition("://")[0]
        if scheme not in _MODULES:
            known = ", ".join(f"{s}://" for s in _MODULES)
            raise BadSetting(f"broker URL {url!r}: the scheme must be one of {known}")
        families.setdefault(_MODULES[scheme], []).append(url)
    return [import_module(module).open(group) for module, group in families.items()]
