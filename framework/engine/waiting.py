"""What has come to a handler and has not been started: its queue, and how messages leave it again. It starts nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

from framework.engine.batches import BatchQueue
from framework.engine.unstarted import PUT_OFF, Unstarted
from framework.message import Message


class Waiting:
    """Of one handler. ``queue`` is where its slots take from."""

    def __init__(self, queue: deque[Message] | BatchQueue, unstarted: Unstarted) -> None:
        self.queue = queue
        self.unstarted = unstarted

    def take(self, doomed: Callable[[Message], bool] = lambda _: True) -> list[Message]:
        """Take out of the queue what is ``doomed``, or all."""
        waiting = list(self.queue)
        taken = [message for message in waiting if doomed(message)]
        if taken:
            self.queue.clear()
            self.queue.extend(message for message in waiting if not doomed(message))
        return taken

    def put_off(self, messages: Iterable[Message]) -> None:
        """Have them delivered again in a while, here or elsewhere. What a broker takes back from nobody waits on here."""
        self.queue.extend(self.unstarted.give_back(messages, PUT_OFF))

    def put_off_all(self) -> None:
        self.put_off(self.take())

    def put_off_late(self, late: Collection[Message]) -> None:
        """Those that waited too long."""
        self.take(late.__contains__)
        self.put_off(late)

    def lost(self, message: Message) -> None:
        """Its lease is gone: if it waits, it is not started any more.

        After a pause thousands are lost one by one. A look at all that waits for each of them kept the hub for so long that what
        came meanwhile was lost as well, again and again (measured: 19,804 deliveries of 6,000 messages, and none finished)."""
        try:
            self.queue.remove(message)
        except ValueError:
            return
        self.unstarted.lost((message,))

    def closed(self, connection: Any) -> None:
        """The leases of ``connection`` are gone: what waits of them is forgotten, the broker delivers it again."""
        self.unstarted.lost(self.take(lambda waiting: waiting.connection is connection))

    def wait_at_most(self, seconds: float) -> None:
        """No message can be kept for longer until its batch is full."""
        if isinstance(self.queue, BatchQueue):
            self.queue.wait_at_most(seconds)

    def forget(self) -> None:
        """In a forked child: the messages are the parent's."""
        self.queue.clear()
        self.unstarted.forget()

    def close(self) -> None:
        if isinstance(self.queue, BatchQueue):
            self.queue.close()
