"""Reports to Sentry what handlers fail by, and traces of their calls. Imported only where a setting or the app asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import sentry_sdk
from sentry_sdk.integrations.atexit import AtexitIntegration
from sentry_sdk.integrations.logging import ignore_logger

from framework import published
from framework.handler import HandlerSpec
from framework.observe.logging import scrubbed
from framework.sentry.options import Options, of_settings
from framework.sentry.publishing import traced
from framework.sentry.transport import Transport
from framework.sentry.watch import Watch

__all__ = ["Options", "observe", "of_settings", "start", "watched"]

_POLICIES = ("retry", "dead_letter", "batch")


def start(options: Options) -> None:
    """Once in a process. An app that has called ``sentry_sdk.init`` keeps its own client."""
    if not sentry_sdk.get_client().is_active():
        _init(options)
    for name in _POLICIES:  # they log each failure, of which there is an event already
        ignore_logger(f"framework.middleware.{name}")
    published.tracer = traced


def _init(options: Options) -> None:
    sentry_sdk.init(
        dsn=options.dsn,
        transport=Transport,
        traces_sample_rate=options.traces or None,
        include_local_variables=options.bodies,
        in_app_exclude=["framework"],
        before_send=_scrubbed,
        before_send_transaction=_scrubbed,
        integrations=[AtexitIntegration(callback=_silent)],
    )


def _scrubbed(event: Any, hint: Any) -> Any:
    """Without users, passwords and secret options of URLs, wherever in it they are."""
    return scrubbed(event)


def _silent(pending: int, timeout: float) -> None:
    """In place of three lines on stderr about what is still to be sent."""


def watched(handlers: Iterable[HandlerSpec], options: Options) -> list[HandlerSpec]:
    """``handlers`` with Sentry around their calls, outside of all else."""
    start(options)
    return [replace(spec, middleware=(Watch(spec, options), *spec.middleware)) for spec in handlers]


def observe(spec: HandlerSpec, options: bytes) -> HandlerSpec:
    """The same, in a slot process."""
    return watched([spec], msgspec.msgpack.decode(options, type=Options))[0]
