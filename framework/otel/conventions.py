"""The names of OpenTelemetry's messaging conventions (1.44) that are used here, the metrics, and the attributes of both."""

from __future__ import annotations

import os
import socket
from functools import cache
from typing import TypeAlias

from opentelemetry.metrics import Counter, Histogram, Meter
from opentelemetry.util.types import AttributeValue

from framework.observe.system import server_of

Attributes: TypeAlias = dict[str, AttributeValue]

SYSTEM = "messaging.system"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
SUBSCRIPTION = "messaging.destination.subscription.name"
GROUP = "messaging.consumer.group.name"
CLIENT = "messaging.client.id"
MESSAGE = "messaging.message.id"
CONVERSATION = "messaging.message.conversation_id"
COUNT = "messaging.batch.message_count"
SIZE = "messaging.message.body.size"
ADDRESS = "server.address"
PORT = "server.port"
ERROR = "error.type"

SEND, RECEIVE, PROCESS, SETTLE = "send", "receive", "process", "settle"
"""``messaging.operation.type``."""
_FORMER = {SEND: "publish"}
"""What ``messaging.operation`` was called up to 1.26, where it is not the same."""
_BOTH = "messaging/dup" in os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").replace(" ", "").split(",")
"""Whether the former name is wanted as well."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Seconds."""


class Metrics:
    """The instruments. Those of a provider that is set later begin to count then."""

    def __init__(self, meter: Meter) -> None:
        self.process: Histogram = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of processing operation.", explicit_bucket_boundaries_advisory=BUCKETS
        )
        self.operation: Histogram = meter.create_histogram(
            "messaging.client.operation.duration", "s",
            "Duration of messaging operation initiated by a client.", explicit_bucket_boundaries_advisory=BUCKETS,
        )  # fmt: skip
        self.sent: Counter = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Number of messages producer attempted to send to the broker."
        )
        self.consumed: Counter = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Number of messages that were delivered to the application."
        )


def named(kind: str, system: str, topic: str, operation: str = "") -> Attributes:
    """What spans and metrics of all operations have. ``operation``: its name, where that is not its ``kind``."""
    made: Attributes = {OPERATION: operation or kind, OPERATION_TYPE: kind, SYSTEM: system, DESTINATION: topic}
    return {**made, "messaging.operation": _FORMER.get(kind, kind)} if _BOTH else made


@cache
def server(node: str) -> Attributes:
    """Of a ``host:port``; nothing of an empty one."""
    if not node:
        return {}
    address, port = server_of(node)
    return {ADDRESS: address} if port is None else {ADDRESS: address, PORT: port}


def client_id() -> str:
    """One process is one client."""
    return f"{socket.gethostname()}-{os.getpid()}"


def kind_of(error: BaseException) -> str:
    """``error.type``: the class, and ``ValueError`` of a built-in one."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
