"""Handlers whose package declares middleware, and which have some of their own."""

from __future__ import annotations

import os

from around_jobs import Inner, here, note, tenant
from framework import Batch, Message, handler

KIND = os.environ["KIND"]


@handler("orders", "billing", slots=KIND, concurrency=2, middleware=[Inner()])
def bill(message: Message) -> None:
    note("handler", here(), tenant.get())
    if message.body == b"swallow" and message.attempts == 1:
        raise ValueError("of the handler")


@handler("orders", "batches", slots=KIND, concurrency=1, batch=10, linger=0.05)
def bill_many(batch: Batch) -> None:
    note("batch", *sorted(message.body.decode() for message in batch))
