"""Workers by POP that are told to stop at the moment of one request to a real RocketMQ: every message is counted."""

from __future__ import annotations

import pytest

from framework.transports.rocketmq.wire.codes import Request
from tests.transports.rocketmq.kit import until
from tests.transports.rocketmq.shop import SOON, Shop, told_to_stop

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]
OPTIONS = "mode=pop&lease=5s"
AGAIN = 60.0
"""Seconds in which comes again what nobody has acknowledged: its lease of 5 s, the broker's own 5, and a busy machine."""


@pytest.mark.parametrize(
    "request_of",
    [Request.GET_ROUTEINFO_BY_TOPIC, Request.GET_BROKER_CONFIG, Request.HEART_BEAT, Request.POP_MESSAGE],
    ids=lambda code: code.name,
)
def test_a_worker_that_is_told_to_stop_while_it_dials_ends_and_leaves_all_to_the_next(shop: Shop, request_of: Request) -> None:
    shop.publish(0, 40)
    shop.gates.hold(request_of)
    worker = shop.start(ready=False)
    worker.wait_until(lambda: shop.gates.held[request_of] > 0, deadline=60.0)
    assert told_to_stop(worker) < SOON
    assert not shop.handled()
    worker = shop.start(shop.kit.server.address)
    until(lambda: len(shop.handled()) == 40, AGAIN)
    assert told_to_stop(worker) < SOON
    assert set(shop.handled().values()) == {1}


@pytest.mark.parametrize(
    "held",
    [
        [Request.POP_MESSAGE], [Request.CHANGE_MESSAGE_INVISIBLETIME], [Request.HEART_BEAT], [Request.UNREGISTER_CLIENT],
        [Request.ACK_MESSAGE, Request.BATCH_ACK_MESSAGE],
    ],
    ids=lambda codes: codes[0].name,
)  # fmt: skip
def test_a_worker_that_is_told_to_stop_while_a_request_of_its_is_not_answered_leaves_the_rest_to_the_other(
    shop: Shop, held: list[Request]
) -> None:
    """Only what it finished and could not say so comes again."""
    first = shop.start()
    shop.publish(0, 200)
    until(lambda: len(shop.handled()) > 20)
    shop.gates.hold(*held)
    if Request.POP_MESSAGE in held or Request.ACK_MESSAGE in held:
        until(lambda: sum(shop.gates.held[one] for one in held) > 0, 60.0)
    shop.publish(200, 300)
    assert told_to_stop(first) < SOON
    by_first = shop.handled().total()
    second = shop.start(shop.kit.server.address)
    until(lambda: len(shop.handled()) == 300, AGAIN)
    assert told_to_stop(second) < SOON
    twice = shop.handled().total() - 300
    print(f"{held[0].name}: 300 handled, {by_first} by the first, {twice} twice, {sum(shop.gates.held.values())} held")
    assert twice <= (by_first if Request.ACK_MESSAGE in held else 0)
