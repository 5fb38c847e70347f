"""What surrounds a handler's function: one policy a file, compiled once per handler into plain closures.

The order is fixed here, because the right one is not a matter of taste: dead letters inside, retries outside, so that a dead
letter that cannot be stored is retried like any other failure. Time limits are timers beside the path, in ``engine``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framework.handler import HandlerSpec
from framework.message import Message
from framework.middleware.batch import compile_batch
from framework.middleware.dead_letter import Publish, compile_bury, compile_dead_letter
from framework.middleware.outcome import BatchOutcome, Outcome
from framework.middleware.retry import Delay, compile_failed, compile_retry


def compile_chain(
    spec: HandlerSpec, *, publish: Publish, delay: Delay, call: Callable[[Any], None] | None = None
) -> Callable[[Any], Outcome | BatchOutcome]:
    """The handler with its policies: Message -> Outcome, or for a batch handler messages -> BatchOutcome.

    ``publish(topic, body)`` returns when the body is stored; ``delay(attempts)`` is the retry schedule in seconds.
    ``call``, for handlers that run elsewhere, does what ``compile_call`` would do, and raises what the handler raises.
    """
    call = call or compile_call(spec)
    bury = compile_bury(spec, publish)
    failed = compile_failed(spec, delay)
    if spec.batch:
        return compile_batch(spec, call, bury, failed, delay)
    return compile_retry(compile_dead_letter(spec, call, bury), failed)


def compile_call(spec: HandlerSpec) -> Callable[[Any], None]:
    """Decode and call: of a Message, or of a Batch. What the function returns means nothing."""
    function, decode = spec.function, spec.decode
    if decode is None:

        def call(message: Any) -> None:
            function(message)

        return call

    def call_decoded(message: Message) -> None:
        function(decode(message))

    return call_decoded
