"""docs/web.md: each application as it stands there, under each server as it stands there. Orders in, messages counted."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from framework.testing import servers
from framework.testing.servers import ROOT, Server, free_port, running
from tests.house.pages import blocks

PAGE = list(blocks(ROOT / "docs" / "web.md"))
((BROKER_VARIABLE, _),) = (
    line.removeprefix("$ export ").split("=")
    for block in PAGE
    for line in block.text.splitlines()
    if line.startswith("$ export ")
)
COMMANDS = [line[2:] for block in PAGE if block.language == "console" for line in block.text.splitlines() if "8000" in line]
ORDERS = 40

pytestmark = pytest.mark.slow


@contextmanager
def serving(command: str, folder: Path, broker: str) -> Iterator[str]:
    """The application of ``command`` in ``folder``; yields the URL that takes orders."""
    for block in PAGE:
        if block.file:
            (folder / block.file).write_text(block.text)
    port = free_port()
    program, *arguments = shlex.split(command.replace("8000", str(port)))
    variables = os.environ | {BROKER_VARIABLE: broker, "HOME": str(folder)}
    started = [Path(sys.executable).parent / program, *arguments]
    process = subprocess.Popen(started, cwd=folder, env=variables, start_new_session=True)
    url = f"http://127.0.0.1:{port}/orders"
    try:
        wait_until(lambda: _listens(url), 60)
        yield url
        process.terminate()
        assert process.wait(30) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def _listens(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def place(url: str, number: int) -> tuple[int, object]:
    """The status, and what is said of the order's message."""
    request = urllib.request.Request(url, json.dumps({"id": number}).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)["stored"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["stored"]


def orders(nsqd: Server) -> int:
    [topic] = nsqd.http("/stats?format=json&topic=orders")["topics"]
    return int(topic["message_count"])


def test_every_server_that_the_page_names_is_tried() -> None:
    assert Counter(command.split(":")[0] for command in COMMANDS) == {
        "gunicorn with_flask": 2,
        "gunicorn with_django": 1,
        "uvicorn with_fastapi": 1,
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_each_order_is_a_message_and_without_a_broker_each_is_told(command: str, tmp_path: Path) -> None:
    nsqd, numbers = servers.own_nsqd(tmp_path / "nsqd"), count()
    with running(nsqd), serving(command, tmp_path, f"nsq://{nsqd.address}") as url, ThreadPoolExecutor(8) as clients:
        assert list(clients.map(lambda number: place(url, number), range(ORDERS))) == [(202, True)] * ORDERS
        assert orders(nsqd) == ORDERS
        nsqd.stop()
        assert list(clients.map(lambda number: place(url, number), range(ORDERS, ORDERS + 8))) == [(503, False)] * 8
        nsqd.start()
        wait_until(lambda: place(url, 1000 + next(numbers)) == (202, True), 30)
