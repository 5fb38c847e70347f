"""Finds the transport of a broker URL by its scheme: one of ours, or one that an installed package brings.

A package brings one by an entry point, so that every verb of the command line and every publisher finds it::

    [project.entry-points."workers.transports"]
    thing = "thing_broker:open"        # thing://…; open(urls) -> Transport
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from framework.errors import BadSetting
from framework.transports.addresses import without_login
from framework.transports.contract import Transport

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "workers.transports"
"""The entry point group of transports; a name in it is a scheme."""

Open = Callable[[Sequence[str]], Transport]
"""The URLs of one family of schemes -> their transport. Raises BadSetting for one it cannot use; connects to nothing."""

_MODULES = {
    "nsq": "framework.transports.nsq.transport",
    "nsq+tls": "framework.transports.nsq.transport",
    "nsq+unix": "framework.transports.nsq.transport",
    "nsq+lookupd": "framework.transports.nsq.transport",
    "nsq+lookupd+https": "framework.transports.nsq.transport",
    "beanstalkd": "framework.transports.beanstalkd.transport",
    "nats": "framework.transports.nats.transport",
    "nats+tls": "framework.transports.nats.transport",
    "tls": "framework.transports.nats.transport",
    "nats-route": "framework.transports.nats_route.transport",
    "rocketmq": "framework.transports.rocketmq.transport",
    "rocketmq+tls": "framework.transports.rocketmq.transport",
    "memory": "framework.transports.memory.transport",
}


def open_transports(urls: Sequence[str]) -> list[Transport]:
    """One transport for each family of schemes among ``urls``; no connection is made yet.

    Raises BadSetting for a URL it cannot use.
    """
    families: dict[Open, list[str]] = {}
    for url in urls:
        families.setdefault(_find(url), []).append(url)
    return [open_family(family) for open_family, family in families.items()]


def _find(url: str) -> Open:
    scheme = url.partition("://")[0]
    if scheme in _MODULES:
        ours: Open = import_module(_MODULES[scheme]).open
        return ours
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, and only for somebody's package

    brought = entry_points(group=GROUP)
    for one in brought.select(name=scheme):
        return _load(url, one)
    known = ", ".join(f"{name}://" for name in [*_MODULES, *sorted(brought.names)])
    raise BadSetting(f"broker URL {without_login(url)!r}: the scheme must be one of {known}")


def _load(url: str, point: EntryPoint) -> Open:
    try:
        loaded: Open = point.load()
    except Exception as error:  # whatever the import of somebody's package raises
        package = point.dist.name if point.dist else point.module
        raise BadSetting(
            f"broker URL {without_login(url)!r}: its transport {point.value} (of {package}) cannot be imported: {error}"
        ) from error
    return loaded
