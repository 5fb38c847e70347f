"""Headers whose bytes are no UTF-8, as NATS carries them: their messages wait, die and go to a process as any other."""

from __future__ import annotations

import json

import msgspec

from framework.engine.slot_wire import delivery
from framework.errors import Reject, Retry
from framework.message import Message
from framework.middleware.outcome import DEAD, DEFERRED
from tests.middleware.waiting import LONGEST, Waiting

ODD = {b"caf\xe9".decode(errors="surrogateescape"): b"\xff\xfe".decode(errors="surrogateescape"), "traceparent": "00-1"}
SHOWN = {"caf\\udce9": "\\udcff\\udcfe", "traceparent": "00-1"}


def odd(waiting: Waiting) -> Message:
    message = waiting.original()
    message.headers = ODD
    return message


def test_its_letter_is_stored_with_what_is_no_text_escaped(waiting: Waiting) -> None:
    """It could not be written, so that its message came again for ever."""

    def function(_: Message) -> None:
        raise Reject("unwanted")

    assert waiting.chain(function)(odd(waiting)) == DEAD
    assert json.loads(waiting.dead[0].partition(b"\n")[0])["headers"] == SHOWN


def test_it_waits_as_any_other(waiting: Waiting) -> None:
    asked = [Retry(delay=5, count=False), Retry(delay=2 * LONGEST)]
    seen: list[dict[str, str]] = []

    def function(message: Message) -> None:
        seen.append(dict(message.headers))
        if asked:
            raise asked.pop()

    chain = waiting.chain(function)
    assert chain(odd(waiting)) == DEFERRED
    while waiting.published:
        waiting.now += waiting.published[-1][2]
        envelope = waiting.envelope()
        waiting.published.clear()
        assert chain(envelope) == (DEFERRED if waiting.published else None)
    assert seen == [ODD, SHOWN, SHOWN]


def test_it_goes_to_a_slot_process(waiting: Waiting) -> None:
    message = odd(waiting)
    message.connection.lasting_ids = True
    assert delivery(message).headers == SHOWN
    assert msgspec.msgpack.encode(delivery(message))
