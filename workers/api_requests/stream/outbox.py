"""What is to be published waits here, durably, until a broker has it: a broker that is down holds up nothing else.

At least once: what was stored by the broker just before a crash is published again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from framework import BadMessage, Publisher
from workers.api_requests.database import transaction

_TABLE = "create table if not exists outbox (number integer primary key autoincrement, name text unique, body text not null)"
_PUT = "insert or replace into outbox (name, body) values (?, ?)"  # a replaced one gets a new number
_NEXT = "select number, body from outbox where number > ? order by number limit ?"
_AT_ONCE = 500
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0  # seconds between tries


class Letter(NamedTuple):
    """One message that waits."""

    number: int
    body: str


class Outbox:
    """Messages by name in the SQLite file ``path``; of those with one name only the newest waits, so it stays small."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, bodies: Mapping[str, str]) -> None:
        """Durable on return."""
        with transaction(self._path, _TABLE) as database:
            database.executemany(_PUT, bodies.items())

    def waiting(self, after: int = 0) -> list[Letter]:
        """The oldest ones, of those that came after the one with the number ``after``; not all where there are many."""
        with transaction(self._path, _TABLE) as database:
            return [Letter(*row) for row in database.execute(_NEXT, (after, _AT_ONCE))]

    def count(self) -> int:
        with transaction(self._path, _TABLE) as database:
            return int(database.execute("select count(*) from outbox").fetchone()[0])

    def remove(self, letters: list[Letter]) -> None:
        """Let go of those that a broker has. One that was put anew meanwhile has another number, and stays."""
        with transaction(self._path, _TABLE) as database:
            database.executemany("delete from outbox where number = ?", [(letter.number,) for letter in letters])


class Sender:
    """Publishes an outbox to ``topic`` in a thread of its own; what a broker does not take waits, and is tried again.

    ``say`` is told, once each, that the outbox waits and that it goes on.
    """

    def __init__(self, outbox: Outbox, publisher: Publisher, topic: str, say: Callable[[str], None]) -> None:
        self._outbox = outbox
        self._publisher = publisher
        self._topic = topic
        self._say = say
        self._news = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"publish {topic}", daemon=True)
        self.trouble = ""
        """Why the outbox waits; empty while it does not."""

    def start(self) -> None:
        self._news.set()  # what an earlier run left
        self._thread.start()

    def put(self, bodies: Mapping[str, str]) -> None:
        """Durable on return; published as soon as a broker takes it."""
        self._outbox.put(bodies)
        self._news.set()

    def flush(self, seconds: float, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Whether the outbox is empty, waiting for it ``seconds`` at the most and no longer than until ``given_up``."""
        until = time.monotonic() + seconds
        while waits := self._outbox.count():
            if given_up() or time.monotonic() > until:
                break
            time.sleep(0.05)
        return not waits

    def stop(self) -> None:
        """Publish no more. A publish that is under way may end after this; what waits then waits for the next run."""
        self._stopping.set()
        self._news.set()
        if self._thread.ident is not None:  # what fails before it is started must be told, and not this
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._news.wait()
            self._news.clear()
            pause = _FIRST_PAUSE
            while not self._stopping.is_set() and not self._sent_all():
                self._stopping.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        self._publisher.close()

    def _sent_all(self) -> bool:
        refused: BadMessage | None = None
        try:
            last = 0
            while letters := self._outbox.waiting(last):
                refused = self._send(letters) or refused
                last = letters[-1].number
            if refused is not None:
                raise refused
        except Exception as error:  # whatever it is, a thread that ends without a word would be worse
            self._note(str(error) or type(error).__name__)
            return False
        self._note("")
        return True

    def _send(self, letters: list[Letter]) -> BadMessage | None:
        """Publish ``letters``; what the broker refuses, too large for it perhaps, waits and holds up no other."""
        try:
            self._publisher.publish_many(self._topic, [letter.body for letter in letters])
        except BadMessage as error:
            if len(letters) == 1:
                return error
            refusals = [self._send([letter]) for letter in letters]
            return next(filter(None, refusals), None)
        self._outbox.remove(letters)
        return None

    def _note(self, trouble: str) -> None:
        before, self.trouble = self.trouble, trouble
        with suppress(OSError):  # nobody reads what is said: that is no reason to publish no more
            if trouble and not before:
                self._say(f"{self._topic} waits to be published, and is tried again: {trouble}")
            elif before and not trouble:
                self._say(f"{self._topic} is published again")
