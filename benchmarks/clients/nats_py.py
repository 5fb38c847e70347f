"""nats.py, as its documentation shows: fetch and ack, publish_async, and respond."""

import asyncio
import sys

import nats

from benchmarks.measure import BODY

job, address = sys.argv[1:]


async def pull() -> None:
    client = await nats.connect(f"nats://{address}")
    subscription = await client.jetstream().pull_subscribe_bind(consumer="bench", stream="bench")
    while True:
        try:
            messages = await subscription.fetch(2500, timeout=30)
        except nats.errors.TimeoutError:
            continue
        for message in messages:
            await message.ack()


async def store() -> None:
    client = await nats.connect(f"nats://{address}")
    stream = client.jetstream(publish_async_max_pending=500)
    while True:
        await stream.publish_async("bench", BODY, wait_stall=5.0)


async def respond() -> None:
    client = await nats.connect(f"nats://{address}")

    async def answer(message: nats.aio.msg.Msg) -> None:
        await message.respond(message.data)

    await client.subscribe("bench", "bench", cb=answer)
    await asyncio.Event().wait()


asyncio.run(globals()[job]())
