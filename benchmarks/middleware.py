"""What an app's middleware costs a message, beside a handler without any: CPU of the chain, without broker and loop.

The cases take turns, and the lowest of the rounds counts: what else runs on the machine only adds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

from framework import Message, Middleware
from framework.handler import make_spec
from framework.middleware import compile_chain
from framework.middleware.outcome import Told


class Idle(Middleware):
    def start(self) -> None: ...


class Around(Middleware):
    def around(self, job: Any, call: Callable[[], None]) -> None:
        call()


class After(Middleware):
    def after(self, message: Message, outcome: str) -> None: ...


CASES: dict[str, list[Middleware]] = {
    "none": [],
    "start and stop": [Idle()],
    "around": [Around()],
    "around x3": [Around(), Around(), Around()],
    "after": [After()],
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.middleware", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--messages", type=int, default=200_000)
    options = parser.parse_args(arguments)
    chains = {name: _chain(middleware) for name, middleware in CASES.items()}
    rounds = [{name: measured(chain, options.messages) for name, chain in chains.items()} for _ in range(options.rounds)]
    print(f"middleware, {options.messages} messages, the lowest of {options.rounds} rounds, us of CPU a message")
    for name in CASES:
        print(f"  {name:<15} {min(one[name] for one in rounds):.3f}")


def _chain(middleware: list[Middleware]) -> Callable[[Any], Any]:
    def handle(message: Message) -> None: ...

    spec = make_spec(handle, "orders", "billing", {"middleware": middleware})
    return compile_chain(spec, publish=lambda topic, body: None, delay=float)


def measured(chain: Callable[[Any], Any], messages: int) -> float:
    """Microseconds of CPU for one of ``messages``."""
    message = Message(b"0123456789abcdef", 0, 1, b"body", None)
    began = time.process_time()
    for _ in range(messages):
        outcome = chain(message)
        if outcome is not None:
            _settle(outcome)
    return (time.process_time() - began) / messages * 1e6


def _settle(outcome: Told) -> None:
    outcome.tell(outcome.message, "finished")


if __name__ == "__main__":
    main()
