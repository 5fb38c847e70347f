"""What the settings say of Sentry, as data that travels to slot processes. It imports nothing of the SDK."""

from __future__ import annotations

import msgspec

from framework.decoding import prepared
from framework.observe.system import system_of
from framework.settings import Settings


@prepared
class Options(msgspec.Struct, frozen=True):
    """``dsn`` is empty where the app itself calls ``sentry_sdk.init``."""

    dsn: str = ""
    events: str = "each"
    """"each" failure is an event, or only what becomes a "dead" letter."""
    traces: float = 0.0
    """The part of the calls that are traced, 0 to 1."""
    bodies: bool = False
    """Bodies, and the local variables of frames, which may hold them."""
    system: str = ""
    """``messaging.system``: nsq, beanstalkd, nats."""


def of_settings(settings: Settings) -> Options:
    """The options of a worker with ``settings``."""
    return Options(
        dsn=settings.sentry_dsn or "", events=settings.sentry_events, traces=settings.sentry_traces,
        bodies=settings.sentry_bodies, system=system_of(settings.brokers),
    )  # fmt: skip
