"""A real RocketMQ whose machine lost its power: the end of its log had not been written, and other messages have those offsets
now. What is new is handled, and of what was handled before, little comes again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework.errors import BrokerUnreachable
from framework.testing.conformance.receiver import Held
from framework.testing.rocketmq import PROMPT, RocketMQ
from framework.transports.rocketmq.membership import HELD
from framework.transports.rocketmq.requests import MOST, PARKED
from framework.transports.rocketmq.wire.stored import decode
from tests.transports.rocketmq.kit import Kit, started, until

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.at_length]
FIRST, KEPT, QUEUES = 600, 450, 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    yield from started(tmp_path_factory.mktemp("rocketmq"))


@pytest.fixture
def own(server: RocketMQ) -> Iterator[Kit]:
    made = Kit(server)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("then", "members", "left"),
    [(40, 1, 1), (400, 1, 1), (400, 2, 2), (400, QUEUES + 1, QUEUES + 1), (400, 2, 1), (400, 3, 1), (400, 3, 2)],
    ids=[
        "fewer than were lost",
        "more than were lost",
        "two members, who come back one after the other",
        "one member more than queues, who comes back first",
        "one of two members is killed as well",
        "two of three are",
        "one of three is",
    ],
)
def test_what_is_new_is_handled_and_not_all_that_was(own: Kit, then: int, members: int, left: int) -> None:
    """Where there are more, the offset that was committed is one of the new ones: those before it were never handled. Of the
    queues of those that are killed the others have read nothing."""
    transports = [own.open("&mode=pull") for _ in range(members)]
    bodies: Counter[bytes] = Counter()
    held = [own.hold(transport, grant=100) for transport in transports]

    def handled(start: bytes) -> int:
        for one in held:
            for message in list(one.connection.in_flight):
                one.connection.finish(message)
                bodies[message.body] += 1
        return sum(body.startswith(start) for body in bodies)

    until(lambda: sum(counts := [len(queues_of(one)) for one in held]) == QUEUES and max(counts) - min(counts) <= 1)
    transports = [transport for _, transport in sorted(enumerate(transports), key=lambda one: len(queues_of(held[one[0]])))]
    own.spread(*(b"first %d" % number for number in range(FIRST)))
    until(lambda: handled(b"first") == FIRST)
    until(lambda: committed(own) == FIRST)
    own.server.broker.kill()
    cut_off(own, b"first %d" % KEPT)
    own.server.broker.start()
    until(lambda: all(one.receiver.closings for one in held))
    own.spread(*(b"then %d" % number for number in range(then)))  # before anybody reads
    held.clear()
    for transport in transports[:left]:
        held.append(until(lambda: held_again(own, transport)))  # noqa: B023 - it is called at once
        until(lambda: len(queues_of(held[-1])) >= QUEUES // members, 2 * HELD)  # none may be one that it had
        for _ in range(20):
            handled(b"then")
            gevent.sleep(0.05)
    until(lambda: handled(b"then") == then, 60.0)
    gevent.sleep(1.0)
    assert handled(b"then") == then
    assert bodies.total() - len(bodies) <= QUEUES * 2 * MOST, "an answer or two of each queue"


@pytest.mark.parametrize("ours", [0, 1], ids=["none of which was for it", "the first of which were for it"])
def test_what_is_new_is_handled_where_other_tags_were_lost(own: Kit, ours: int) -> None:
    """A reader has passed over messages of other tags, and knows them no less."""
    producer, bodies = own.open().producer(), set[bytes]()

    def publish(tag: str, start: str, count: int) -> None:
        assert not any(producer.publish_each(own.topic, [f"{start} {n}".encode() for n in range(count)], headers={"TAGS": tag}))

    def handled() -> int:
        for message in list(held.connection.in_flight):
            held.connection.finish(message)
            bodies.add(message.body)
        return len(bodies)

    transport = own.open("&mode=pull&tags=a")
    held = own.hold(transport, grant=100)
    until(lambda: len(queues_of(held)) == QUEUES)
    if ours:
        publish("a", "ours", 100)
        until(lambda: handled() == 100)
    publish("b", "first", FIRST)
    until(lambda: committed(own) == FIRST + len(bodies), PARKED + 20.0)  # a PULL that waits is not answered with them
    own.server.broker.kill()
    cut_off(own, b"first %d" % KEPT)
    own.server.broker.start()
    until(lambda: held.receiver.closings)
    publish("a", "then", 400)
    bodies.clear()
    held = until(lambda: held_again(own, transport))
    until(lambda: handled() and sum(body.startswith(b"then") for body in bodies) == 400, 60.0)
    producer.close()


@pytest.fixture(params=[{}, PROMPT], ids=["checkpoints in files", "KV mode"])
def by_pop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    for one in started(tmp_path, request.param):
        made = Kit(one)
        yield made
        made.close()


def test_by_pop_what_is_new_is_handled_also_where_it_came_before_the_workers_were_back(by_pop: Kit) -> None:
    """The broker goes on where the group was: of 40 new messages none was handled, and of 400 289. Two workers share each queue,
    and come back one after the other."""
    transports = [by_pop.open("&mode=pop&lease=30s") for _ in range(2)]
    bodies: Counter[bytes] = Counter()
    held = [by_pop.hold(transport, grant=50) for transport in transports]

    def handled(start: str) -> int:
        for one in held:
            for message in list(one.connection.in_flight):
                one.connection.finish(message)
                bodies[message.body] += 1
        return sum(body.startswith(start.encode()) for body in bodies)

    for then in 40, 400:
        bodies.clear()
        by_pop.spread(*(b"first %d, %d" % (then, number) for number in range(FIRST)))
        until(lambda: handled(f"first {then},") == FIRST, 60.0)  # noqa: B023 - it is called at once
        gevent.sleep(11.0)  # the broker saves how far the group is
        by_pop.server.broker.kill()
        cut_off(by_pop, b"first %d, %d" % (then, KEPT))
        by_pop.server.broker.start()
        until(lambda: all(one.receiver.closings for one in held))
        by_pop.spread(*(b"then %d" % number for number in range(then)))
        held.clear()
        for transport in transports:
            held.append(until(lambda: held_again(by_pop, transport)))  # noqa: B023 - it is called at once
            until(lambda: handled("then"))
        until(lambda: handled("then") == then, 60.0)  # noqa: B023 - as above
        gevent.sleep(1.0)
        print(f"{then} new, {bodies.total() - len(bodies)} twice")
    until(lambda: handled("then") and all(one.balanced() for one in held))


def queues_of(one: Held) -> list[Any]:
    """Of the topic itself."""
    connection: Any = one.connection
    return [place for place in connection.readings if not place.topic.startswith("%RETRY%")]


def held_again(kit: Kit, transport: Any) -> Held | None:
    """None: the name server does not know of the broker yet."""
    try:
        return kit.hold(transport, grant=100)
    except BrokerUnreachable:
        return None


def committed(kit: Kit) -> int:
    """What the broker has on its disk of how far the group is: in JSON, but for the names of its queues, which are numbers."""
    table = store(kit.server) / "config" / "consumerOffset.json"
    name = re.escape(f"{kit.topic_there}@{kit.topic_there}|billing")
    found = re.search(rf'"{name}":\{{(.*?)\}}', table.read_text() if table.exists() else "", re.DOTALL)
    return sum(int(number) for number in re.findall(r":\s*(\d+)", found[1])) if found else 0


def cut_off(kit: Kit, body: bytes) -> None:
    """The log as if nothing from the message with ``body`` on had been written."""
    log = min((store(kit.server) / "commitlog").iterdir())
    data, at = log.read_bytes(), 0
    while True:
        one, following = decode(data, at)
        if (one.topic, one.body) == (kit.topic_there, body):
            break
        at = following
    with log.open("r+b") as file:
        file.truncate(at)
        file.truncate(len(data))


def store(server: RocketMQ) -> Path:
    return server.data / f"store-{server.broker.name}"
