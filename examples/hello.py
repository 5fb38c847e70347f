"""The smallest worker: one function, one topic, one channel.

workers run examples.hello
echo world | workers publish greetings
"""

from framework import handler


@handler("greetings", "hello")
def greet(name: str) -> None:
    """Called once for every message; returning finishes the message."""
    print(f"hello, {name}", flush=True)
