"""Who wants what, against an oracle that looks at every subscription each time; and how members of a queue group are drawn."""

from __future__ import annotations

import gc
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.transports.nats import route_wire
from framework.transports.nats.route_wire import Interest
from framework.transports.nats_route.interest import PLAIN, Interests, matches
from framework.transports.nats_route.weights import FULL, MOST, PER_SLOT, draw, weight

tokens = st.sampled_from([b"a", b"b", b"c", b"a*", b">b"])
subjects = st.lists(st.sampled_from([b"a", b"b", b"c", b"a*"]), min_size=1, max_size=4).map(b".".join)
patterns = st.builds(
    lambda some, tail: b".".join([*some, *tail]),
    st.lists(tokens | st.just(b"*"), min_size=1, max_size=4),
    st.sampled_from([(), (b">",)]),
) | st.just(b">")
subscriptions = st.tuples(st.sampled_from("xyz"), patterns, st.sampled_from([PLAIN, b"q", b"r"]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), subscriptions, st.integers(-1, 5)),
        st.tuples(st.just("remove"), subscriptions),
        st.tuples(st.just("forget"), st.sampled_from("xyz")),
    ),
    max_size=30,
)


def takes(pattern: bytes, subject: bytes) -> bool:
    """The rule of NATS, token by token."""
    wanted, given_ = pattern.split(b"."), subject.split(b".")
    for number, token in enumerate(wanted):
        if token == b">" and number == len(wanted) - 1:
            return len(given_) > number
        if number >= len(given_) or token not in (b"*", given_[number]):
            return False
    return len(wanted) == len(given_)


@given(steps, st.lists(subjects, min_size=1, max_size=5))
def test_whoever_wants_a_subject_is_found_as_by_looking_at_every_subscription(some, asked):
    interests: Interests[str] = Interests()
    oracle: dict[tuple[str, bytes, bytes], int] = {}
    for step in some:
        match step:
            case "add", (server, pattern, queue), share:
                interests.add(server, pattern, queue, share)
                oracle[server, pattern, queue] = share
            case "remove", (server, pattern, queue):
                interests.remove(server, pattern, queue)
                oracle.pop((server, pattern, queue), None)
            case "forget", server:
                interests.forget(server)
                oracle = {key: share for key, share in oracle.items() if key[0] != server}
        for subject in asked:
            found = interests.wanted(subject)
            hits = {key: share for key, share in oracle.items() if takes(key[1], subject)}
            groups: dict[bytes, Counter[str]] = {}
            for (server, _, queue), share in hits.items():
                if queue != PLAIN and share > 0:
                    groups.setdefault(queue, Counter())[server] += share
            assert set(found.plain) == {server for server, _, queue in hits if queue == PLAIN}
            assert found.groups == groups
            assert bool(found) == bool(found.plain or groups)
    assert len(interests) == len(oracle)
    assert interests.patterns() == {(pattern, queue) for _, pattern, queue in oracle}


@given(steps)
def test_nothing_is_kept_of_those_that_are_gone(some):
    interests: Interests[str] = Interests()
    for step in some:
        if step[0] == "add":
            interests.add(*step[1], step[2])
    for server in "xyz":
        interests.forget(server)
    assert len(interests) == 0
    assert (interests._exact, interests._root.next) == ({}, {})


@given(patterns, subjects)
def test_a_pattern_takes_what_the_table_says_that_it_takes(pattern, subject):
    assert matches(pattern, subject) == takes(pattern, subject)


def test_members_are_drawn_as_their_weights_say():
    drawn = Counter(draw([("a", 1), ("b", 9), ("c", 0)]) for _ in range(20_000))
    assert drawn["c"] == 0
    assert abs(drawn["a"] - 2000) < 4 * (20_000 * 0.1 * 0.9) ** 0.5


@given(st.integers(0, 1000), st.integers(0, 2000), st.integers(1, MOST))
def test_a_weight_is_room_and_never_nothing_and_all_together_are_bounded(slots, taken, members):
    one = weight(slots, taken, members)
    assert 1 <= one
    assert one * members <= max(MOST, members)
    assert one <= max(FULL, (slots - taken) * PER_SLOT)


def test_who_has_a_free_slot_gets_nearly_all_and_of_those_that_are_full_the_larger_gets_more():
    assert weight(2, 1, 2) >= 16 * weight(100, 100, 2)
    assert weight(10, 10, 2) == 5 * weight(2, 2, 2)
    assert weight(10, 14, 2) == 3 * weight(2, 2, 2)
    assert weight(10, 100, 2) == weight(2, 2, 5000) == 1


def seconds_to_learn(count: int, pattern: bytes) -> float:
    """Of CPU, for that many subscriptions as a server tells of them when we join."""
    told = b"".join(route_wire.interest(Interest(b"$G", pattern % number)) for number in range(count))
    decoder, interests = route_wire.RouteDecoder(), Interests[str]()
    gc.disable()  # which goes through all that other tests have left
    try:
        began = time.process_time()
        for at in range(0, len(told), 65_536):
            for event in decoder.feed(told[at : at + 65_536]):
                interests.add("x", event.subject, event.queue, event.weight)
        took = time.process_time() - began
    finally:
        gc.enable()
    assert len(interests) == count
    return took


@pytest.mark.parametrize("pattern", [b"orders.%d", b"%d.*"])
def test_many_thousand_subscriptions_cost_no_more_for_each_than_a_few_do(pattern):
    """How long a hundred thousand take: ``python -m benchmarks.route --parts interest``."""
    few, many = (min(seconds_to_learn(count, pattern) for _ in range(3)) for count in (1_000, 20_000))
    assert many < 20 * 6 * few
