"""What a case works with: workers in the test's own thread or in processes, publishers, proxies, and the books at the end."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import gevent
import pytest

from framework import names
from framework.engine.ledger import Ledger
from framework.engine.refusals import refusals
from framework.engine.supervisor import Supervisor
from framework.handler import HandlerSpec
from framework.middleware.dead_letter import topic_name
from framework.publisher import PATIENT, Publisher
from framework.testing.conformance.receiver import Held
from framework.testing.conformance.subject import Node, Subject
from framework.testing.proxies import Proxies
from framework.testing.worker_process import START
from framework.transports.contract import Capabilities, Connection, Receiver, Transport

PATIENCE = 40.0
"""Seconds that a condition may take to come true: eight times what the slowest needs on a quiet machine."""
CHANNEL = "work"
_numbers = itertools.count(1)

Target = Node | str
"""Where a worker or a publisher connects to: a node, or a URL (of a proxy)."""


class Watched:
    """A transport that remembers the connections it made."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.connections: list[Connection] = []

    def connect(self, node: str, topic: str, channel: str, receiver: Receiver) -> Connection:
        connection = self._transport.connect(node, topic, channel, receiver)
        self.connections.append(connection)
        return connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Worker:
    """A supervisor in a greenlet of the test's thread. Its books are checked when it ends, whatever ends it."""

    def __init__(self, bench: Bench, specs: Sequence[HandlerSpec], targets: Sequence[Target], **options: Any) -> None:
        self._bench = bench
        self._watched = Watched(bench.open(*targets))
        self._publisher = bench.publisher(*targets)
        transport = cast(Transport, self._watched)
        self.supervisor = Supervisor(specs, [transport], publish=self._publisher.publish, **options)
        self.most_exposed = 0
        self._wanted = len(targets) * len(specs)
        self.greenlet = gevent.spawn(self.supervisor.run)

    @property
    def connections(self) -> list[Connection]:
        """All that it made, those that ended included."""
        return self._watched.connections

    @property
    def ready(self) -> bool:
        """Every handler is connected to every node."""
        return self.supervisor.ready and len(self.connections) >= self._wanted

    @property
    def ledger(self) -> Ledger:
        """Of its first handler."""
        return next(iter(self.supervisor.ledgers.values()))

    def sample(self) -> int:
        """What the broker may have in flight here at this moment: sum(exposed); keeps the most."""
        now = sum(connection.exposed for connection in self.connections)
        self.most_exposed = max(self.most_exposed, now)
        return now

    def stop(self, *, now: bool = False) -> Ledger:
        """Stop it, check the books, and return those of its first handler."""
        self.supervisor.stop(now)
        return self.end()

    def end(self) -> Ledger:
        """Wait for the end of a stop, check the books, and return those of its first handler."""
        self.greenlet.get(timeout=PATIENCE)
        self.check_books()
        return self.ledger

    def check_books(self) -> None:
        for name, ledger in self.supervisor.ledgers.items():
            assert ledger.balance(0) == 0, f"the ledger of {name} does not add up: {ledger}"


class Process:
    """A worker in a process of its own (``conformance.process``), which writes what it handles to a journal."""

    def __init__(self, bench: Bench, url: str, topic: str, journal: Path, mode: str) -> None:
        self._bench = bench
        self.journal = journal
        arguments = [url, topic, CHANNEL, str(journal), mode]
        self.process = subprocess.Popen([sys.executable, "-c", START, *arguments], stdout=subprocess.PIPE, text=True)

    def handled(self) -> list[tuple[int, bytes]]:
        """(attempts, body) of each call, in order, of every process on this journal."""
        if not self.journal.exists():
            return []
        lines = (line.partition(b" ") for line in self.journal.read_bytes().split(b"\n")[:-1])
        return [(int(attempts), body) for attempts, _, body in lines]

    def ended(self) -> bool:
        return self.process.poll() is not None

    def survives(self, condition: Callable[[], Any]) -> bool:
        """Wait until ``condition`` holds, or the process has ended; whether it lives."""
        self._bench.until(lambda: condition() or self.ended())
        return not self.ended()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)

    def terminate(self) -> dict[str, int]:
        """SIGTERM; waits for a clean end and returns its ledger, which must add up."""
        self.process.send_signal(signal.SIGTERM)
        self._bench.until(self.ended)
        out = self.process.communicate(timeout=PATIENCE)[0]
        assert self.process.returncode == 0, f"a worker that was told to stop ended with {self.process.returncode}"
        ledger = Ledger(**json.loads(out))
        assert ledger.balance(0) == 0, f"the ledger does not add up: {ledger}"
        return ledger.as_dict()


class Bench:
    """One case's tools. Everything that it started is ended, and every ledger checked, when the case is over."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.subject = subject
        self.topic = f"case-{os.getpid()}-{next(_numbers)}"
        """A topic that no other case has."""
        self.workers: list[Worker] = []
        self._folder = folder
        self._publishers: list[Publisher] = []
        self._proxies: list[Proxies] = []
        self._processes: list[Process] = []
        self._held: list[Held] = []
        self._transports: list[Transport] = []
        self.patience = PATIENCE
        """Seconds after which a condition that does not come true is a failure, at the most."""

    # -- the broker

    @property
    def capabilities(self) -> Capabilities:
        return self.subject.capabilities()

    @property
    def node(self) -> Node:
        """The node of most cases, with leases of a minute or so."""
        return self.subject.node()

    @property
    def brief(self) -> Node:
        """A node with leases of ``subject.brief`` seconds."""
        return self.subject.node(brief=True)

    def other(self) -> Node:
        """A second node."""
        return self.subject.node(1)

    def open(self, *targets: Target) -> Any:
        """A transport over ``targets``; without any, over ``node``. Closed at the end."""
        self._transports.append(self.subject.open([_url(target) for target in targets or (self.node,)]))
        return self._transports[-1]

    def needs_a_second_delivery(self) -> None:
        """Skip the case where nothing is delivered again."""
        if not self.capabilities.acknowledges:
            pytest.skip("this broker delivers each message once")

    def needs_storage(self) -> None:
        """Skip the case where nothing waits for whoever has not subscribed yet, or was not granted more."""
        if not self.capabilities.stores:
            pytest.skip("this broker keeps nothing")

    def down(self, node: Node) -> None:
        _apart(node.down)

    def up(self, node: Node) -> None:
        _apart(node.up)

    def proxy(self, node: Node, *, watchful: bool = False) -> tuple[Proxies, str]:
        """A fault proxy before ``node``, and the URL that leads through it. Skips the case where there is no socket."""
        if not node.address:
            pytest.skip("this broker has no socket to put a proxy before")
        proxy, url = node.proxied()
        self._proxies.append(proxy)
        return proxy, self.subject.watchful(url) if watchful else url

    def left(self, *targets: Target, topic: str = "") -> int:
        """How many messages the broker still has of the case's topic."""
        return sum(self.open(*targets).backlog(topic or self.topic, CHANNEL).values())

    # -- workers and publishers

    def spec(self, function: Callable[[Any], Any], **options: Any) -> HandlerSpec:
        """A handler of the case's topic."""
        defaults: dict[str, Any] = {
            "topic": self.topic, "channel": CHANNEL, "decode": None, "concurrency": 10, "max_in_flight": 200, "timeout": 30.0,
            "max_attempts": 0, "batch": 0, "linger": 0.05,
        }  # fmt: skip
        return HandlerSpec(function=function, given=frozenset(options), **{**defaults, **options})

    def work(
        self, *handlers: Any, on: Target | Sequence[Target] = (), settings: dict[str, Any] | None = None, **options: Any
    ) -> Worker:
        """A worker of ``handlers`` (functions, which get ``options``, or specs), started; ``settings`` are the supervisor's."""
        targets = [on] if isinstance(on, Node | str) else list(on)
        specs = [each if isinstance(each, HandlerSpec) else self.spec(each, **options) for each in handlers]
        worker = Worker(self, specs, targets or [self.node], **(settings or {}))
        self.workers.append(worker)
        return worker

    def ready(self, *handlers: Any, **options: Any) -> Worker:
        """``work``, and wait until it is connected everywhere."""
        worker = self.work(*handlers, **options)
        self.until(lambda: worker.ready)
        return worker

    def process(self, target: Target, mode: str = "work") -> Process:
        """A worker process on ``target``; see ``conformance.process`` for its modes. Skips where no process can reach it."""
        if not self.subject.reachable:
            pytest.skip("this broker lives in the process")
        self._processes.append(Process(self, _url(target), self.topic, self._folder / "journal", mode))
        return self._processes[-1]

    def publisher(self, *targets: Target) -> Publisher:
        self._publishers.append(Publisher([self.open(*targets)], timeout=PATIENT))
        return self._publishers[-1]

    def publish(self, *bodies: bytes, on: Target | None = None, topic: str = "") -> None:
        """Store ``bodies`` in the case's topic."""
        publisher = self.publisher(*([on] if on else []))
        if not self.capabilities.auto_create:
            self.open(*([on] if on else [])).ensure(topic or self.topic, [])
        publisher.publish_many(topic or self.topic, bodies)
        publisher.close()

    def dead_letters(self, *, on: Target | None = None) -> list[bytes]:
        """The original bodies of the dead letters of the case's topic, filled as they come by a worker of its own."""
        found: list[bytes] = []
        topic = topic_name(self.topic, CHANNEL)
        self.work(
            lambda letter: found.append(letter.body.partition(b"\n")[2]), on=[on] if on else [], topic=topic, channel="look"
        )
        return found

    def refused(self, *specs: HandlerSpec) -> list[str]:
        """What `run` and `check` would say against ``specs``."""
        transport = self.open()
        return refusals(specs, transport, transport.probe())

    def hold(self, *, on: Target | None = None, grant: int = 0, channel: str = CHANNEL) -> Held:
        """A connection to the case's topic that no worker uses; the books of its strict receiver are checked at the end."""
        transport = self.open(*([on] if on else []))
        if not transport.capabilities.auto_create:
            transport.ensure(self.topic, [channel])
        (node,) = transport.discover(self.topic, channel) or {info.node for info in transport.probe()}
        held = Held(lambda receiver: transport.connect(node, self.topic, channel, receiver))
        self._held.append(held)
        held.grant(grant)
        return held

    # -- waiting

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
        """Turn the hub until ``condition`` holds. Fails when it does not in time, or when a worker ended by an error."""
        seconds = min(seconds, self.patience)
        deadline = time.monotonic() + seconds
        while not condition():
            for worker in self.workers:
                worker.sample()
                if worker.greenlet.dead:
                    worker.greenlet.get()
            assert time.monotonic() < deadline, f"not within {seconds:g} s; {self._situation()}"
            gevent.sleep(0.005)

    def stays(self, condition: Callable[[], Any], seconds: float) -> None:
        """Turn the hub for ``seconds``; fails as soon as ``condition`` does not hold."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert condition()
            gevent.sleep(0.005)

    def _situation(self) -> str:
        return "; ".join(str(worker.supervisor.ledgers) for worker in self.workers)

    # -- the end

    def close(self) -> None:
        """End everything. The workers first, on a network that works again; then the books."""
        for proxy in self._proxies:
            proxy.restore()
        for held in self._held:
            if not held.receiver.closings:
                held.connection.close()
        running = [worker for worker in self.workers if not worker.greenlet.dead]
        for worker in running:
            worker.supervisor.stop()
        gevent.joinall([worker.greenlet for worker in running], timeout=PATIENCE)
        for publisher in self._publishers:
            publisher.close()
        for transport in self._transports:
            transport.close()
        for process in self._processes:
            if not process.ended():
                process.kill()
        for proxy in self._proxies:
            proxy.stop()
        for worker in self.workers:
            assert worker.greenlet.dead, f"a worker did not stop; {self._situation()}"
            worker.check_books()
        for held in self._held:
            self.until(lambda held=held: held.receiver.closings)  # type: ignore[misc]
            held.check()


class Cases:
    """The base of every chapter."""

    @pytest.fixture
    def bench(self, subject: Subject, tmp_path: Path) -> Iterator[Bench]:
        made = Bench(subject, tmp_path)
        yield made
        made.close()


def bodies(count: int, what: str = "message") -> list[bytes]:
    """``count`` bodies that differ."""
    return [b"%s %d" % (what.encode(), number) for number in range(count)]


def longest_name() -> str:
    """A valid name that is as long as a name may be, and different each time."""
    return f"{os.getpid()}-{next(_numbers)}".rjust(names.MAX_LENGTH, "n")


def _url(target: Target) -> str:
    return target.url if isinstance(target, Node) else target


def _apart(work: Callable[[], None]) -> None:
    """In a native thread: the hub, and the workers on it, go on."""
    gevent.get_hub().threadpool.apply(work)
