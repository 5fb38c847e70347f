"""What the settings say of OpenTelemetry, as data that travels to slot processes. It imports nothing of the SDK."""

from __future__ import annotations

import msgspec

from framework.decoding import prepared
from framework.observe.system import only_node, system_of
from framework.settings import Settings


@prepared
class Options(msgspec.Struct, frozen=True):
    """What is not said by the variables OTEL_*."""

    parent: bool = False
    """The span of a publish is the parent of the call's, where that has one message; else a link leads to it."""
    system: str = "_OTHER"
    """``messaging.system``: nsq, beanstalkd, nats, rocketmq; the convention's word where they are several."""
    all: bool = False
    """Spans of receiving and settling too."""
    sizes: bool = False
    """How large bodies are."""
    node: str = ""
    """Where what is published goes, ``host:port``; empty where that may be several."""


def of_settings(settings: Settings) -> Options:
    """The options of a worker with ``settings``."""
    return Options(
        parent=settings.otel_producer == "parent",
        all=settings.otel_spans == "all",
        sizes=settings.otel_body_sizes,
        system=system_of(settings.brokers) or "_OTHER",
        node=only_node(settings.brokers) if settings.brokers else settings.nsqd_tcp_address,
    )
