"""What the fixtures of the pytest plugin are made of; the plugin, ``pytest_workers``, imports this when a test asks for one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from framework import publisher
from framework.handler import _registry
from framework.nsqd.embedded import EmbeddedNsqd, ensure
from framework.publisher import Publisher
from framework.testing.broker import Broker
from framework.testing.runner import Runner
from framework.transports.memory import add, forget

_numbers = itertools.count(1)


@contextmanager
def memory_broker() -> Iterator[Broker]:
    """An empty broker in memory, to which ``framework.publish`` publishes meanwhile."""
    broker = Broker(f"test-{next(_numbers)}")
    add(broker)
    try:
        with _publishing(broker.publisher):
            yield broker
    finally:
        forget(broker.name)


@contextmanager
def embedded_nsqd(folder: Path) -> Iterator[EmbeddedNsqd]:
    """The embedded nsqd on ``folder`` and free ports, to which ``framework.publish`` publishes meanwhile."""
    nsqd = ensure(folder, tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    try:
        with _publishing(Publisher(nsqd.url)):
            yield nsqd
    finally:
        nsqd.stop()


@contextmanager
def runner(broker: Broker | EmbeddedNsqd) -> Iterator[Runner]:
    """Runs handlers on ``broker``. Those that a test declares inside a function are forgotten at its end."""
    through = Publisher(broker.url)
    try:
        yield Runner(broker.url, through, broker if isinstance(broker, Broker) else None)
    finally:
        through.close()
        for name, entry in list(_registry.entries.items()):
            if "<locals>" in entry.spec.function.__qualname__:
                del _registry.entries[name]


@contextmanager
def _publishing(through: Publisher) -> Iterator[None]:
    publisher.use(through)
    try:
        yield
    finally:
        publisher.use(None)
        through.close()
