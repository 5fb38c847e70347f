"""What the tests of a master share: an app in a folder, a real nsqd, and a master whose processes can be asked for."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from framework.testing.processes import has_ended, left_after
from framework.testing.servers import Server
from framework.testing.workers import Worker

SAY = """
    from time import sleep

    @handler("orders", "say", concurrency=4, max_in_flight=20)
    def say(text: str) -> None:
        sleep(0.01)
        say_at_once(f"got {text} {os.getpid()} {VERSION}")
"""
HEAD = """
import os
from framework import *

VERSION = {version}

def say_at_once(line):
    os.write(1, line.encode() + b"\\n")  # in one piece: several processes write there
"""
ALL_READY = "processes are ready"


class Master(Worker):
    """A ``workers run --processes``, and what its log tells of its processes."""

    def told(self, pattern: str) -> list[str]:
        """What the group of ``pattern`` was, in the order of the lines."""
        return [match[1] for line in list(self.err) if (match := re.search(pattern, line))]

    @property
    def started(self) -> list[int]:
        """The processes that have subscribed so far, the former ones too."""
        return [int(pid) for pid in self.told(r"process \d+ (?:of \d+ is at work: |is )(\d+)")]

    @property
    def alive(self) -> list[int]:
        return [pid for pid in self.started if not has_ended(pid)]

    def until_started(self, count: int, *, deadline: float = 40.0) -> None:
        """Until so many have subscribed since the beginning."""
        self.wait_until(lambda: len(self.started) >= count, deadline=deadline)

    def got(self) -> list[int]:
        """The numbers of the messages that were handled, in their order."""
        return [int(line.split()[1]) for line in list(self.out) if line.startswith("got ")]


def consumers(nsqd: Server, topic: str = "orders", channel: str = "say") -> int:
    """How many connections are subscribed."""
    return len(nsqd.channel_stats(topic, channel).get("clients") or ())


@pytest.fixture
def nsqd(start_nsqd: Callable[..., Server]) -> Server:
    """It has what a killed process had delivered again soon."""
    return start_nsqd("--msg-timeout=4s")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes the module ``shop``, its ``VERSION`` included, and returns its folder."""

    def write(text: str = SAY, version: int = 1) -> Path:
        (tmp_path / "shop.py").write_text(HEAD.format(version=version) + textwrap.dedent(text))
        return tmp_path

    return write


@pytest.fixture
def lead(tmp_path: Path, nsqd: Server) -> Iterator[Callable[..., Master]]:
    """Starts a master of ``shop``; when all is over, none of its processes may be left."""
    with ExitStack() as stack:

        def start(
            *flags: str, processes: int | str = 2, ready: str | None = ALL_READY, env: dict[str, str] | None = None
        ) -> Master:
            broker = () if "--broker" in flags else ("--broker", f"nsq://{nsqd.address}?http_port={nsqd.http_port}")
            more = (*broker, "--processes", str(processes), "--ledger", "ledger.json", *flags)
            master = Master("run", "shop", *more, cwd=tmp_path, env=env)
            stack.callback(_end, master)
            if ready is not None:
                master.wait_for(ready, deadline=40)
            return master

        yield start


def _end(master: Master) -> None:
    if master.process.poll() is None:
        master.process.kill()
    master.wait()
    assert left_after(master.started, 40) == []
