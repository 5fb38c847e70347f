"""NATS's own client for Python as the other side: what it publishes a worker handles, and what that publishes it reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import nats
import pytest
from nats.aio.client import Client

from framework.testing.workers import Worker

from .conftest import until

pytestmark = pytest.mark.real
T = TypeVar("T")

SHOP = """
from framework import Message, handler, publish

@handler("orders.neu", "billing")
def bill(message: Message) -> None:
    publish("invoices", "für ".encode() + message.body, headers={**message.headers, "Stadt": "Köln 話"})
"""


def with_nats_py(kit, work: Callable[[Client], Awaitable[T]]) -> T:
    """What ``work`` returns, which is done with a client of nats.py."""

    async def run() -> T:
        client = await nats.connect(f"nats://{kit.server.address}", allow_reconnect=False)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


def publish(kit, *messages: tuple[bytes, dict[str, str] | None], topic: str = "orders.neu") -> list[Any]:
    async def work(client: Client) -> list[Any]:
        stream = client.jetstream()
        return [await stream.publish(topic, body, headers=headers) for body, headers in messages]

    return with_nats_py(kit, work)


def read(kit, topic: str, count: int) -> list[Any]:
    """The next ``count`` messages of a durable that nats.py has, acknowledged."""

    async def work(client: Client) -> list[Any]:
        subscription = await client.jetstream().pull_subscribe(topic, "reader")
        found: list[Any] = []
        while len(found) < count:
            for message in await subscription.fetch(count - len(found), timeout=10):
                await message.ack_sync()
                found.append(message)
        return found

    return with_nats_py(kit, work)


def test_a_worker_handles_what_nats_py_publishes_and_nats_py_reads_what_the_worker_publishes(kit, tmp_path: Path):
    (tmp_path / "shop.py").write_text(SHOP)
    worker = Worker("run", "shop", "--broker", f"nats://{kit.server.address}", cwd=tmp_path)
    try:
        worker.wait_for("ready")
        publish(kit, ("Zoë".encode(), {"Customer": "42"}), (b"\x00\xff\r\n", None))
        until(lambda: kit.api.stream_of("invoices"))
        plain, raw = sorted(read(kit, "invoices", 2), key=lambda message: message.data, reverse=True)
    finally:
        assert worker.stop() == 0
    assert [plain.data, raw.data] == ["für Zoë".encode(), "für ".encode() + b"\x00\xff\r\n"]
    assert {name: value for name, value in plain.headers.items() if name != "Nats-Msg-Id"} == {
        "Customer": "42",
        "Stadt": "Köln 話",
    }
    assert {name: value for name, value in raw.headers.items() if name != "Nats-Msg-Id"} == {"Stadt": "Köln 話"}
    assert len({plain.headers["Nats-Msg-Id"], raw.headers["Nats-Msg-Id"]}) == 2


def test_streams_and_durables_of_nats_py_are_used_by_a_handler_as_they_are(kit):
    """Its defaults: what a worker finds where it takes over from a worker of nats.py."""

    async def work(client: Client) -> None:
        stream = client.jetstream()
        await stream.add_stream(name="SHOP", subjects=["orders.>"])
        await stream.publish("orders.neu", "Zoë".encode(), headers={"Stadt": "Köln", "Wort": "話"})
        subscription = await stream.pull_subscribe("orders.neu", "billing")
        [first] = await subscription.fetch(1, timeout=10)
        await first.nak()

    with_nats_py(kit, work)
    held = kit.hold(kit.open(), "orders.neu")
    until(lambda: held.taken)
    assert held.bodies == ["Zoë".encode()]
    assert dict(held.taken[0].headers) == {"Stadt": "Köln", "Wort": "話"}
    assert held.taken[0].attempts == 2
