"""Handlers that only a process can bear, and what tells one process from another."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from framework import Batch, Message, Retry

log = logging.getLogger("shop")
STARTED = os.environ.get("STARTED")
if STARTED:
    with open(STARTED, "a") as started:
        started.write(f"{os.getpid()}\n")


class ShopError(Exception):
    def __init__(self, order: int, shop: str) -> None:
        super().__init__(f"order {order} at {shop}")
        self.order = order


def catastrophe(message: Message) -> None:
    """Hold the GIL in C for as long as it takes."""
    re.match(r"(a+)+$", "a" * int(message.body) + "b")


def note(*pids: int) -> None:
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(" ".join(map(str, pids)) + "\n")


def say_pid(message: Message) -> None:
    note(os.getpid())


def say_headers(message: Message) -> None:
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(f"{dict(message.headers)}\n")


def die(message: Message) -> None:
    if message.body == b"exit" and message.attempts == 1:
        os._exit(3)
    if message.body == b"segfault" and message.attempts == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if message.body == b"slow":
        say_pid(message)
        while not Path(os.environ["GATE"]).exists():
            time.sleep(0.01)


def hang(message: Message) -> None:
    """With a process of its own that hangs as well."""
    if message.attempts == 1:
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        note(os.getpid(), started.pid)
        while True:
            pass


def touch_when_it_comes_back(message: Message) -> None:
    if message.attempts == 1:
        raise Retry(delay=1.0)
    message.touch()
    if message.lease_lost or message.seconds_left > 60 or message.topic != "orders":
        raise ValueError(f"it is not as it was: {message.topic}, {message.seconds_left} s left")


def raises(message: Message) -> None:
    if message.attempts == 1:
        raise ShopError(7, "the corner")


def talk(message: Message) -> None:
    log.info("heard %s", message.body.decode())
    try:
        raise ValueError("aside")
    except ValueError:
        log.exception("went wrong")
    exec(compile("log.info('from elsewhere')", "/caf\udce9/shop.py", "exec"))  # a path that is no UTF-8
    log.debug("nobody wants to know")
    print("printed", flush=True)
    threads = [threading.Thread(target=log.info, args=("from thread %d", n)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def big(message: Message) -> None:
    assert message.body == b"x" * 3_000_000


def batch_of_errors(batch: Batch) -> None:
    for message in batch:
        if message.attempts == 1:
            batch.fail(message, ShopError(int(message.body), "the corner"))
