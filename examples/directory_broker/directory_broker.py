"""A broker that is a directory of files, as an example of a transport of one's own: the whole contract, and nothing more.

    pip install examples/directory_broker
    workers run examples.hello --broker dir:///tmp/queue
    echo world | workers publish greetings --broker dir:///tmp/queue

A message is a file ``<topic>/ready.<due>.<id>.<deliveries>``. Who renames it to ``taken.<lease ends>.<id>.<deliveries>`` has it:
of many processes that try, one succeeds. Times are nanoseconds since 1970. A topic is one queue, without channels.
"""

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from uuid import uuid4

from gevent import get_hub

from framework import AlreadySettled, BadMessage, BadSetting, Message, WrongUse
from framework.transports.contract import Capabilities, Limits, NodeInfo, Receiver, Transport

LIMITS = Limits(lease=60.0, max_lease=float("inf"), max_grant=1000)


def after(seconds: float) -> str:
    return f"{time.time_ns() + int(seconds * 1e9):020d}"


def move(file: Path, state: str, moment: str, more: int = 0) -> Path | None:
    _, _, identity, deliveries = file.name.split(".")
    try:
        return file.rename(file.with_name(f"{state}.{moment}.{identity}.{int(deliveries) + more}"))
    except FileNotFoundError:  # somebody else was quicker
        return None


class DirectoryConnection:
    limits, granted, open, rescuable, lasting_ids = LIMITS, 0, True, None, True

    def __init__(self, node: str, topic: str, channel: str, receiver: Receiver) -> None:
        self.node, self.topic, self.channel, self.receiver = node, topic, channel, receiver
        self.in_flight: dict[Message, float] = {}
        self.files: dict[Message, Path] = {}
        self.timer = get_hub().loop.timer(0.01, 0.01)
        self.timer.start(self.poll)

    def poll(self) -> None:
        self.receiver.settled(self)
        now, room = after(0), max(0, self.granted - len(self.in_flight))
        files = sorted(Path(self.node, self.topic).glob("[rt]*"))  # of what is taken: whose lease has run out, whoever had it
        mine = [file for file in files if file.name < f"ready.{now}" or "taken" < file.name < f"taken.{now}"][:room]
        if batch := [self.received(taken) for file in mine if (taken := move(file, "taken", after(LIMITS.lease), 1))]:
            self.receiver.tally.received += len(batch)
            self.receiver.deliver(self, batch)
            get_hub().loop.run_callback(lambda: self.open and self.poll())  # now: a grant grows only while it is used up quickly

    def received(self, file: Path) -> Message:
        _, _, identity, deliveries = file.name.split(".")
        message = Message(identity.encode(), file.stat().st_mtime_ns, int(deliveries), file.read_bytes(), self)
        self.in_flight[message], self.files[message] = time.monotonic(), file
        return message

    @property
    def exposed(self) -> int:
        return max(self.granted, len(self.in_flight))

    def grant(self, n: int) -> None:
        self.granted = n

    def finish(self, message: Message) -> None:
        if file := self.moved(message, "done", 0.0):
            file.unlink()
            self.receiver.tally.finished += 1

    def requeue(self, message: Message, delay: float) -> None:
        if self.moved(message, "ready", delay):
            self.receiver.tally.requeued += 1

    def touch(self, message: Message) -> None:
        if file := self.moved(message, "taken", LIMITS.lease):
            self.in_flight[message], self.files[message] = time.monotonic(), file

    def moved(self, message: Message, state: str, delay: float) -> Path | None:
        if self.in_flight.pop(message, None) is None:
            raise AlreadySettled(f"message {message.id!r} was settled before")
        if not (file := move(self.files.pop(message), state, after(delay))):
            self.receiver.tally.lease_lost += 1
            self.receiver.lost(self, message, "its lease had run out")
        return file

    def drain(self) -> None:
        self.granted = 0
        get_hub().loop.run_callback(self.receiver.drained, self)

    def unsent(self) -> int:
        return 0

    def close(self) -> None:
        if self.open:
            self.timer.close()
            self.open, self.granted = False, 0
            for message in list(self.in_flight):
                self.requeue(message, 0.0)
            self.receiver.closed(self, None)


class DirectoryTransport(Transport):  # whose start, close and ensure do nothing, as here
    capabilities = Capabilities(touch=True, attempts=True, fan_out=False, max_requeue=86_400.0, max_defer=86_400.0)

    def __init__(self, urls: Sequence[str]) -> None:
        if wrong := [url for url in urls if not url.startswith("dir:///") or "?" in url]:
            raise BadSetting(f"broker URL {wrong[0]!r}: write dir:// and an absolute path, as dir:///tmp/queue")
        self.nodes = {url.removeprefix("dir://") for url in urls}

    def accept(self, topic: str, channels: Collection[str]) -> None:
        if len(set(channels)) > 1:
            raise WrongUse(f"topic {topic!r} is one queue here: give each of {', '.join(channels)} a topic of its own")

    def discover(self, topic: str, channel: str) -> set[str]:
        return self.nodes

    def topics(self) -> set[str]:
        return {path.name for node in self.nodes for path in Path(node).glob("*")}

    def channels(self, topic: str) -> set[str]:
        return set()

    def backlog(self, topic: str, channel: str) -> dict[str, int]:
        return {node: len(list(Path(node, topic).glob("[rt]*"))) for node in self.nodes if Path(node, topic).exists()}

    def probe(self, *_: str) -> list[NodeInfo]:
        return [NodeInfo(node, "a directory", LIMITS) for node in self.nodes]

    describe, connect = probe, DirectoryConnection

    def producer(self) -> "DirectoryTransport":
        return self  # it has no connection to keep

    def publish(self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, **_: object) -> None:
        if not all(bodies):
            raise BadMessage(f"topic {topic!r}: an empty body, which other brokers would not take: give it a byte")
        (folder := Path(min(self.nodes), topic)).mkdir(parents=True, exist_ok=True)
        for body in bodies:
            file = folder / f"new.0.{uuid4().hex}.0"
            file.write_bytes(body)
            move(file, "ready", after(delay))

    def publish_each(self, topic: str, bodies: Sequence[bytes], **options: float) -> list[None]:
        self.publish(topic, bodies, **options)
        return [None] * len(bodies)
