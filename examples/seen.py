"""Middleware that skips what was handled before: a message may be published twice, or delivered twice.

    workers run examples.seen
    printf '{"payment": 7}\n{"payment": 7}\n{"payment": 8}\n' | workers publish payments

It remembers a message only when its call has returned, because one that failed has to come again. It remembers in this
process: for several workers, keep the keys in the table that the handler writes to, in the same transaction. In slots of
threads it would need a lock.
"""

from hashlib import sha256

from framework import Middleware, Retry, Skip, handler

MOST = 10_000


class Seen(Middleware):
    def __init__(self):
        self.done = {}  # a dict keeps their order, so that the oldest are forgotten first
        self.under_way = set()

    def around(self, job, call):
        key = sha256(job.body).digest()
        if key in self.done:
            raise Skip("it was handled before")
        if key in self.under_way:
            raise Retry("its double is being handled", delay=1, count=False)
        self.under_way.add(key)
        try:
            call()
        finally:
            self.under_way.discard(key)
        self.done[key] = True
        if len(self.done) > MOST:
            del self.done[next(iter(self.done))]


@handler("payments", "charge", middleware=[Seen()])
def charge(payment: dict) -> None:
    print(f"charged payment {payment['payment']}", flush=True)
