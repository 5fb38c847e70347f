"""What surrounds a handler's function: one policy a file, compiled once per handler into plain closures.

The order is fixed here, because the right one is not a matter of taste: dead letters inside, retries outside, so that a dead
letter that cannot be stored is retried like any other failure. Time limits are timers beside the path, in ``engine``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framework.handler import HandlerSpec
from framework.message import Message
from framework.middleware.after import compile_after
from framework.middleware.around import compile_around, compile_failures, compile_missed, compile_tell, nobody
from framework.middleware.batch import compile_batch, compile_batch_call
from framework.middleware.dead_letter import Publish, compile_dead_letter, compile_give_up
from framework.middleware.failures import Note, ignore
from framework.middleware.later import LaterTopic
from framework.middleware.outcome import Chain
from framework.middleware.policy import compile_policy, translated
from framework.middleware.retry import Delay, compile_again, compile_counted, compile_failed, compile_put_off, compile_retry
from framework.middleware.unreadable import compile_unreadable


def compile_chain(
    spec: HandlerSpec,
    *,
    publish: Publish,
    delay: Delay,
    call: Callable[[Any], None] | None = None,
    later: LaterTopic | None = None,
    note: Note = ignore,
    packed: bool = False,
) -> Chain:
    """The handler with its policies: Message -> Outcome, or for a batch handler messages -> BatchOutcome.

    ``publish(topic, body)`` returns when the body is stored; ``delay(attempts)`` is the retry schedule in seconds.
    ``call``, for handlers that run elsewhere, does what ``compile_call`` would do, and raises what the handler raises.
    ``later``: where what must wait for more than the broker's limit waits; without it, the broker waits for as long as it can.
    ``note`` is told of each failure. ``packed``: some messages may be ``message.Unreadable``.
    """
    call = compile_missed(call, spec.middleware) if call else compile_call(spec)
    tell = compile_tell(spec.middleware)
    means = compile_policy(spec)
    if spec.batch or spec.policy:  # to be told of what was raised, and not of what the policy makes of it
        call, tell = compile_failures(call, tell), nobody
    if spec.policy:
        call = translated(call, means)
    later = later or LaterTopic(spec)
    again = compile_again(spec, delay, later.requeue, note)
    give_up = compile_give_up(spec, publish, again, note)
    counted = compile_counted(spec, again=again, give_up=give_up)
    failed = compile_failed(spec, compile_put_off(spec, delay, later, counted), counted)
    if spec.batch:
        batch = compile_batch(
            spec, call, give_up=give_up, failed=failed, delay=delay, requeue=later.requeue, means=means, note=note
        )
        return compile_after(spec, compile_unreadable(batch, compile_retry(failed)) if packed else batch)
    return compile_after(spec, compile_dead_letter(spec, call, give_up, compile_retry(failed), tell, packed=packed))


def compile_call(spec: HandlerSpec) -> Callable[[Any], None]:
    """The app's middleware, and in it decode and call: of a Message, or of a Batch. What the function returns means nothing."""
    return compile_around(_compile_function(spec), spec.middleware)


def _compile_function(spec: HandlerSpec) -> Callable[[Any], None]:
    function, decode = spec.function, spec.decode
    if spec.batch and (spec.as_list or decode or spec.middleware):
        return compile_batch_call(spec)
    if decode is None:
        return function

    def call_decoded(message: Message) -> None:
        function(decode(message))

    return call_decoded
