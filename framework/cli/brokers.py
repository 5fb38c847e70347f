"""Which brokers a verb that runs no handlers talks to, and waiting until they answer."""

from __future__ import annotations

import time

import click

from framework.errors import BrokerRefuses, BrokerUnreachable, SomeUnreachable
from framework.observe.logging import scrub
from framework.settings import DEFAULT_BROKER, Settings
from framework.transports import open_transports
from framework.transports.contract import NodeInfo, Transport

_BETWEEN_TRIES = 0.25
_SILENT = 1.0
"""Seconds after which the user is told what is waited for."""


def running(settings: Settings) -> tuple[str, ...]:
    """The brokers of ``settings``, else the embedded nsqd that runs on its folder; may be none."""
    if settings.brokers:
        return settings.brokers
    from framework.nsqd.embedded import find  # noqa: PLC0415

    url = find(settings.data_path)
    return (url,) if url else ()


def chosen(settings: Settings) -> tuple[str, ...]:
    """The brokers that are ``running``; nsqd's own address where none is."""
    return running(settings) or (DEFAULT_BROKER,)


def opened(settings: Settings) -> list[Transport]:
    """Transports, which are closed when the verb ends. Raises BadSetting."""
    transports = open_transports(chosen(settings))
    verb = click.get_current_context(silent=True)
    if verb is not None:
        for transport in transports:
            verb.call_on_close(transport.close)
    return transports


def reach(settings: Settings) -> list[Transport]:
    """Transports whose brokers have answered. Raises BadSetting, and BrokerUnreachable past connect_deadline."""
    transports = opened(settings)
    for transport in transports:
        probe(transport, settings.connect_deadline)
    return transports


def reach_some(settings: Settings, absent: Absent) -> list[Transport]:
    """As ``reach``, and those of whose nodes some have answered. ``absent`` is told of the others."""
    transports = opened(settings)
    for transport in transports:
        try:
            probe(transport, settings.connect_deadline, some=True)
        except SomeUnreachable as error:
            absent(error)
    return transports


class Absent:
    """Nodes that could not be asked, each of which is said once, on stderr."""

    def __init__(self) -> None:
        self.nodes: set[str] = set()

    def __call__(self, error: SomeUnreachable) -> None:
        if error.down - self.nodes:
            self.nodes |= error.down
            click.echo(f"workers: {scrub(str(error))}; what is kept there cannot be shown", err=True)


def probe(transport: Transport, deadline: float | None, *, some: bool = False) -> list[NodeInfo]:
    """Ask every node for its name and version until all answer. Raises BrokerRefuses at once, with ``some`` SomeUnreachable too,
    and BrokerUnreachable after ``deadline`` seconds (None: never)."""
    began = time.monotonic()
    until = None if deadline is None else began + deadline
    told = False
    while True:
        try:
            return transport.probe()
        except BrokerRefuses:
            raise
        except BrokerUnreachable as error:
            if some and isinstance(error, SomeUnreachable):
                raise
            if not told and time.monotonic() - began > _SILENT and (until is None or time.monotonic() < until):
                told = True
                limit = "never gives up" if deadline is None else f"gives up after {deadline:g} s"
                click.echo(f"workers: {scrub(str(error))}; this is tried again, and {limit} (--connect-deadline)", err=True)
            if until is not None and time.monotonic() + _BETWEEN_TRIES > until:
                raise
            time.sleep(_BETWEEN_TRIES)
