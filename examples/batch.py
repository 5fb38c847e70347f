"""Many messages in one call: the way to write to a database, a file or an API that takes many at once.

    workers run examples.batch
    seq 1000 | workers publish readings

A call gets at most ``batch`` messages, and waits at most ``linger`` seconds for them. Returning finishes all of them
but those that were failed by name; raising gives all of them back.
"""

from framework import Batch, Reject, handler


@handler("readings", "totals", batch=500, linger=0.2)
def add_up(batch: Batch) -> None:
    total = 0
    for message in batch:
        try:
            total += int(message.body)
        except ValueError:
            batch.fail(message, Reject(f"{message.body!r} is not a number"))
    print(f"sum {total} of {len(batch)} readings, {len(batch.outcomes)} of them bad", flush=True)
