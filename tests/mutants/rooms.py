"""Which tests guard which room: the mutants of a room are shown to these."""

from __future__ import annotations

from typing import NamedTuple


class Room(NamedTuple):
    """A part of the house, and its tests; those that are ``slow`` or start Spark are left out."""

    code: tuple[str, ...]
    """Folders, whose Python files are meant (not those of folders in them), and files."""
    tests: tuple[str, ...]


_NSQD = "tests/conformance/test_real_nsqd.py"
_MEMORY = "tests/conformance/test_memory.py"
_SOCKETS = "tests/transports/test_default_timeout.py"

ROOMS = {
    "engine": Room(("framework/engine",), ("tests/engine", "tests/app", _MEMORY)),
    "middleware": Room(("framework/middleware",), ("tests/middleware", "tests/engine", _MEMORY)),
    "nsq": Room(
        ("framework/transports/nsq",),
        ("tests/transports/nsq", "tests/engine/test_nsqd.py", _NSQD, _SOCKETS),
    ),
    "beanstalkd": Room(
        ("framework/transports/beanstalkd",),
        ("tests/transports/beanstalkd", "tests/conformance/test_beanstalkd.py", "tests/conformance/test_enveloped.py", _SOCKETS),
    ),
    "nats route": Room(
        ("framework/transports/nats_route",), ("tests/transports/nats_route", "tests/conformance/test_nats_route.py")
    ),
    "nats": Room(("framework/transports/nats",), ("tests/transports/nats", "tests/conformance/test_nats.py", _SOCKETS)),
    "rocketmq": Room(
        ("framework/transports/rocketmq",), ("tests/transports/rocketmq", "tests/conformance/test_rocketmq.py", _SOCKETS)
    ),
    "memory": Room(("framework/transports/memory",), ("tests/transports/memory", _MEMORY, "tests/testing")),
    "nsqd": Room(("framework/nsqd",), ("tests/nsqd", "tests/conformance/test_embedded_nsqd.py")),
    "store": Room(("framework/nsqd/store",), ("tests/nsqd",)),
    "dead letters": Room(("framework/deadletters",), ("tests/deadletters", "tests/cli/test_dead.py")),
    "spool": Room(("framework/spool",), ("tests/spool",)),
    "spark": Room(("framework/spark",), ("tests/spark",)),
    "master": Room(("framework/master",), ("tests/master",)),
    "admin": Room(("framework/admin",), ("tests/admin", "tests/cli/test_ctl.py")),
    "observe": Room(("framework/observe",), ("tests/observe",)),
    "history": Room(("framework/history",), ("tests/history",)),
    "dedupe": Room(("framework/dedupe",), ("tests/dedupe",)),
    "otel": Room(("framework/otel",), ("tests/otel",)),
    "sentry": Room(("framework/sentry",), ("tests/sentry",)),
    "app": Room(
        ("framework/app.py", "framework/handler.py", "framework/publisher.py", "framework/settings.py", "framework/payload.py"),
        ("tests/app", "tests/cli", "tests/engine/test_refusals.py"),
    ),
}
