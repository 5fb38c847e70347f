"""Middleware around every handler of a module: how long calls take, and how their messages end.

    workers run examples.timing
    printf 'tea\ncups\nnothing\n' | workers publish parcels

``around`` wraps the call: it runs where the handler runs, and sees what the handler raises. ``after`` hears how the
message ended, once that is settled. What is wrong in a hook (its name, its arguments) is refused at import.
"""

from time import monotonic

from framework import Message, Middleware, Reject, handler, use_middleware


class Timing(Middleware):
    def around(self, job, call):
        began = monotonic()
        try:
            call()
        finally:
            print(f"took {monotonic() - began:.3f} s", flush=True)

    def after(self, message, outcome):
        print(f"{message.topic}/{message.channel} {message.body.decode()}: {outcome}", flush=True)


use_middleware(Timing())  # for all handlers here; in the __init__ of a package, for all of the package


@handler("parcels", "packing")
def pack(message: Message) -> None:
    if message.body == b"nothing":
        raise Reject("there is nothing to pack")
