"""Middleware that gives each call a database session: committed when the call returns, rolled back when it raises.

    workers run examples.session
    printf '{"item": "tea", "count": 3}\n{"item": "tea", "count": -9}\n{"item": "tea", "count": 4}\n' \\
        | workers publish deliveries

The second delivery is rejected after its row was written, and the third sees 7, not -2. A commit that fails is the
handler's failure: the message comes again. ``start`` and ``stop`` are called once in the worker (with slots="process",
once in each of its processes), which is where a pool of connections would be opened and closed.
"""

import sqlite3
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from framework import Middleware, Reject, handler

session: ContextVar[sqlite3.Connection] = ContextVar("session")


class Session(Middleware):
    def start(self):
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "shop.db"
        with closing(sqlite3.connect(self.path)) as database:
            database.execute("create table stock (item text, count integer)")

    def around(self, job, call):
        with closing(sqlite3.connect(self.path)) as database, database:  # which commits, or rolls back
            session.set(database)  # for this call alone: each has a context of its own
            call()

    def stop(self):
        self.folder.cleanup()


@dataclass
class Delivery:
    item: str
    count: int


@handler("deliveries", "stock", concurrency=1, middleware=[Session()])
def take_in(delivery: Delivery) -> None:
    database = session.get()
    database.execute("insert into stock values (?, ?)", (delivery.item, delivery.count))
    if delivery.count < 0:
        raise Reject(f"{delivery.count} cannot be delivered")
    [total] = database.execute("select sum(count) from stock where item = ?", (delivery.item,)).fetchone()
    print(f"{total} {delivery.item} in stock", flush=True)
