"""What is refused at start: a table of brokers that lack something, and the sentence that each handler gets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import pytest

from framework.engine.refusals import cautions, refusals
from framework.errors import Backoff, Retry, WrongUse
from framework.handler import HandlerSpec, make_spec
from framework.transports.contract import Capabilities, Limits, NodeInfo

FULL = Capabilities(touch=True, attempts=True, fan_out=True, max_requeue=60.0, max_defer=60.0)
COUNTLESS = Capabilities(touch=True, attempts=False, fan_out=True, max_requeue=60.0, max_defer=60.0)
UNTOUCHED = Capabilities(
    touch=False, attempts=True, fan_out=True, max_requeue=60.0, max_defer=60.0, longer_lease="start thingd with --lease"
)
NODE = NodeInfo("a:1", "thingd 1", Limits(lease=30.0, max_lease=90.0, max_grant=10))


@dataclass
class Broker:
    """Takes one channel a topic, and names of at most ``longest`` characters."""

    capabilities: Capabilities = FULL
    longest: int = 64
    channels: int = 9

    def accept(self, topic: str, channels: Collection[str]) -> None:
        if len(topic) > self.longest:
            raise WrongUse(f"topic {topic!r} has more than {self.longest} characters: shorten it")
        if len(channels) > self.channels:
            raise WrongUse(f"topic {topic!r} has the channels {', '.join(channels)}: leave one")


def function(message):
    """What is decorated."""


def spec(channel: str = "billing", **options: object) -> HandlerSpec:
    return make_spec(function, "orders", channel, options)


@pytest.mark.parametrize("broker", [Broker(), Broker(COUNTLESS), Broker(UNTOUCHED), Broker(channels=1)])
def test_a_handler_with_defaults_is_taken_by_every_broker_before_a_node_is_known(broker):
    assert refusals([spec()], broker) == []


@pytest.mark.parametrize(
    ("broker", "handlers", "words"),
    [
        (Broker(channels=1), [spec("a"), spec("b")], "topic 'orders' has the channels a, b: leave one"),
        (Broker(longest=5), [spec()], "topic 'orders' has more than 5 characters: shorten it"),
        (Broker(COUNTLESS), [spec(max_attempts=10)], "max_attempts=10 cannot be kept, this broker does not count deliveries"),
        (Broker(), [spec(timeout=91)], "timeout=91 is longer than a:1 keeps a message in flight, 90 s: lower timeout"),
        (Broker(UNTOUCHED), [spec(timeout=31)], "in flight, 30 s: lower timeout, or start thingd with --lease"),
    ],
)
def test_what_a_broker_cannot_do_is_a_sentence_that_names_the_function_and_the_fix(broker, handlers, words):
    found = refusals(handlers, broker, [NODE])
    assert words in found[0]
    assert found[0].startswith(f"{__name__}.function (tests/engine/test_refusals.py:")


def test_the_topic_of_the_dead_letters_must_be_acceptable_too():
    found = refusals([spec()], Broker(longest=10))
    assert [line.partition("): ")[2] for line in found] == [
        "its dead letters: topic 'orders.billing.dead' has more than 10 characters: shorten it"
    ]


@pytest.mark.parametrize(
    ("broker", "handler"),
    [
        (Broker(), spec(timeout=90)),
        (Broker(UNTOUCHED), spec(timeout=30)),
        (Broker(COUNTLESS), spec(max_attempts=0, timeout=1)),
        (Broker(longest=19), spec(timeout=1)),
    ],
)
def test_what_just_fits_is_taken(broker, handler):
    assert refusals([handler], broker, [NODE]) == []


def test_all_that_is_wrong_is_said_at_once():
    found = refusals([spec("a", timeout=91), spec("b", timeout=91)], Broker(channels=1), [NODE, NODE])
    assert len(found) == 1 + 2 * 2


def test_two_handlers_whose_names_make_one_dead_letter_topic_are_refused():
    handlers = [make_spec(function, *names) for names in (("orders", "eu.billing"), ("orders.eu", "billing"), ("orders", "eu"))]
    (words,) = refusals(handlers, Broker())
    assert words.endswith(
        "orders.eu/billing and orders/eu.billing make the same topic for their dead letters, orders.eu.billing.dead: "
        "give one of them another topic or channel"
    )
    joined = "a" * 30 + ".bbb." + "c" * 30  # cut, and told apart by a hash
    long = [make_spec(function, *joined.split(".", 1)), make_spec(function, *joined.rsplit(".", 1))]
    assert len(refusals(long, Broker())) == 1


def test_what_differs_by_being_ephemeral_only_may_share_its_dead_letters():
    assert refusals([spec(), spec("billing#ephemeral")], Broker()) == []


def test_a_delay_that_a_policy_asks_for_and_nothing_keeps_is_refused():
    none = Broker(replace(FULL, max_requeue=0.0, max_defer=0.0, longer_delay="start thingd with --delays"))
    asking = {"policy": {OSError: Retry(delay=80), ValueError: Retry, KeyError: Backoff(delay=0)}}
    (words,) = refusals([spec(**asking)], none)
    assert words.endswith(
        "policy asks for Retry(delay=80), and a message waits here for 0 s at most: "
        "lower the delay, or start thingd with --delays"
    )
    assert refusals([spec(**asking)], Broker()) == []  # in hops
    assert len(refusals([spec("billing#ephemeral", **asking)], Broker())) == 1
    assert refusals([spec("billing#ephemeral", policy={OSError: Retry(delay=60)})], Broker()) == []


def test_a_broker_without_delays_is_a_caution():
    (words,) = cautions(
        [spec(), spec("b")], Broker(replace(FULL, max_requeue=0.0, max_defer=0.0, longer_delay="start thingd with --delays"))
    )
    assert words == (
        "this broker keeps no delays, so what fails or is retried is delivered again at once: start thingd with --delays"
    )


def test_a_broker_that_delays_what_comes_again_and_no_publish_keeps_no_hops():
    again_only = Broker(replace(FULL, max_defer=0.0))
    (words,) = refusals([spec(policy={OSError: Retry(delay=80)})], again_only)
    assert "policy asks for Retry(delay=80), and a message waits here for 60 s at most" in words
    assert refusals([spec(policy={OSError: Retry(delay=60)})], again_only) == []
    (words,) = cautions([spec()], again_only)
    assert words == "this broker delays no publish, so each Retry(count=False) counts as an attempt"


def test_a_broker_that_delays_publishes_and_nothing_that_comes_again_keeps_every_delay_in_envelopes():
    publishes_only = Broker(replace(FULL, max_requeue=0.0))
    assert refusals([spec(policy={OSError: Retry(delay=80)})], publishes_only) == []
    assert cautions([spec()], publishes_only) == []
    assert len(refusals([spec("billing#ephemeral", policy={OSError: Retry(delay=1)})], publishes_only)) == 1


def test_where_nothing_is_acknowledged_whatever_needs_a_second_delivery_is_refused():
    once = Broker(Capabilities(False, False, True, max_requeue=0.0, max_defer=0.0, acknowledges=False))
    asking = [spec("a", max_attempts=3), spec("b", policy={OSError: Retry(delay=80)}), spec("c", on_timeout="reject")]
    found = refusals([*asking, spec("d")], once)
    assert [words.partition("): ")[2].partition(" cannot be kept")[0] for words in found] == [
        "max_attempts=3", "policy", 'on_timeout="reject"'
    ]  # fmt: skip
    assert found[0].endswith("drop max_attempts, use a broker that does, or say at_most_once=True")
    (words,) = cautions([spec()], once)
    assert words == "this broker waits for no acknowledgement, so what fails, or is in flight when a worker ends, is lost"


def test_a_handler_whose_messages_may_be_lost_is_refused_nothing_and_warned_of_nothing_where_nothing_is_acknowledged():
    once = Broker(Capabilities(False, False, True, max_requeue=0.0, max_defer=0.0, acknowledges=False))
    knowing = spec("a", max_attempts=3, policy={OSError: Retry(delay=80)}, on_timeout="reject", at_most_once=True)
    assert refusals([knowing], once) == []
    assert cautions([knowing], once) == []
    assert len(cautions([knowing, spec("b")], once)) == 1
    assert len(refusals([replace(knowing, at_most_once=False)], once)) == 3


def test_the_default_limit_of_attempts_is_a_caution_where_nobody_counts_and_nothing_where_it_was_taken_off():
    handlers = [spec(), spec("b", max_attempts=0)]
    assert refusals(handlers, Broker(COUNTLESS)) == []
    (words,) = cautions(handlers, Broker(COUNTLESS))
    assert "what always fails is delivered for ever" in words
    assert cautions(handlers, Broker()) == []
