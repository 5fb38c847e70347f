"""Going through dead letters takes none away, counts right, and gives back at once; the same on every broker."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from framework.deadletters import DeadTopic, Letter, Replay, Selection, Sweep, find, meant
from framework.deadletters import replay as replaying
from framework.deadletters import sweep as sweeping
from framework.errors import BrokerUnreachable, WrongUse
from framework.testing.servers import Server, free_port, running
from framework.transports import memory, open_transports
from framework.transports.contract import Transport

TOPIC = "orders.billing.dead"
_numbers = itertools.count()
Make = Callable[..., bytes]


def opened(*servers: Server) -> Transport:
    [transport] = open_transports([f"nsq://{one.address}?http_port={one.http_port}" for one in servers])
    return transport


def embedded_nsqd(data: Path, *flags: str) -> Server:
    """The embedded nsqd, not started yet."""
    tcp, http = free_port(), free_port()
    command = [
        sys.executable, "-m", "framework.nsqd", f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{http}",
        f"--data-path={data}", *flags,
    ]  # fmt: skip
    return Server(command, tcp_port=tcp, http_port=http, data=data)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Server]:
    with running(embedded_nsqd(tmp_path)) as server:
        yield server


def real(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.real)


@pytest.fixture(params=["memory", "embedded", real("nsqd"), real("beanstalkd")])
def transport(request: pytest.FixtureRequest) -> Transport:
    if request.param == "memory":
        [transport] = open_transports([f"memory://sweep-{next(_numbers)}"])
    elif request.param == "beanstalkd":
        server = request.getfixturevalue("beanstalkd")
        [transport] = open_transports([f"beanstalkd://{server.address}"])
    else:
        transport = opened(request.getfixturevalue(request.param))
    return transport


def put(transport: Transport, *bodies: bytes, topic: str = TOPIC) -> None:
    producer = transport.producer()
    producer.publish(topic, bodies)
    producer.close()


def look(transport: Transport) -> DeadTopic:
    [topic] = find([transport])
    return topic


def bodies(letters: list[Letter]) -> list[bytes]:
    return sorted(letter.body for letter in letters)


def read_all(transport: Transport) -> list[bytes]:
    with Sweep(look(transport)) as sweep:
        return bodies(list(sweep.chosen(Selection())))


def test_reading_takes_nothing_and_gives_back_at_once(transport: Transport, letter: Make) -> None:
    put(transport, *(letter(n) for n in range(250)))
    expected = sorted(b"body %d" % n for n in range(250))
    began = time.monotonic()
    for _ in range(3):  # were they not given back, the second look would wait for a lease of 60 seconds
        assert look(transport).count == 250
        assert read_all(transport) == expected
    assert time.monotonic() - began < 45


def test_what_is_taken_is_gone_and_the_rest_is_as_it_was(transport: Transport, letter: Make) -> None:
    put(transport, *(letter(n, "KeyError" if n % 2 else "ValueError") for n in range(20)))
    with Sweep(look(transport)) as sweep:
        for one in sweep.chosen(Selection(reason="keyerror")):
            sweep.take(one)
    assert (sweep.seen, sweep.left_behind, sweep.cut_short) == (20, 0, "")
    assert look(transport).count == 10
    assert read_all(transport) == sorted(b"body %d" % n for n in range(0, 20, 2))


def test_a_limit_disturbs_no_more_than_it_needs(transport: Transport, letter: Make) -> None:
    put(transport, *(letter(n) for n in range(50)))
    with Sweep(look(transport)) as sweep:
        assert len(list(sweep.chosen(Selection(limit=3)))) == 3
    assert sweep.seen == 3
    assert len(read_all(transport)) == 50


def test_a_limit_holds_one_letter_more_for_each_that_is_another_handlers(letter: Make) -> None:
    """The others stay where another look can see them: at no moment are more in hand than may be needed."""
    broker = memory.named(f"sweep-{next(_numbers)}")
    [transport] = open_transports([broker.url])
    theirs = [letter(n, topic="orders.eu", channel="billing") for n in range(3)]
    mine = [letter(n, topic="orders", channel="eu.billing") for n in range(3, 20)]
    put(transport, *theirs, *mine, topic="orders.eu.billing.dead")
    most = 0
    with Sweep(meant(look(transport), ["orders/eu.billing"])) as sweep:
        for _ in sweep.chosen(Selection(limit=2)):
            gevent.sleep(0.01)  # what was asked for has come
            most = max(most, broker.in_flight("orders.eu.billing.dead"))
    assert most == len(theirs) + 2


@pytest.mark.parametrize("held", [0, 5])
def test_the_end_waits_for_nothing_that_has_come_already(letter: Make, held: int) -> None:
    [transport] = open_transports([f"memory://sweep-{next(_numbers)}"])
    put(transport, *(letter(n) for n in range(5)))
    began = 0.0
    with Sweep(look(transport)) as sweep:
        for _ in sweep.chosen(Selection(limit=held or None)):
            if not held:
                break
        began = time.monotonic()
    assert time.monotonic() - began < sweeping.CLOSING


def test_letters_in_other_hands_are_missed_and_said(transport: Transport, letter: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    put(transport, *(letter(n) for n in range(5)))
    monkeypatch.setattr(sweeping, "PATIENCE", 0.5)
    with Sweep(look(transport)) as other:
        assert len(list(other.chosen(Selection(limit=2)))) == 2
        with Sweep(look(transport)) as sweep:
            assert len(list(sweep.chosen(Selection()))) == 3
        assert sweep.cut_short == "2 are in other hands, or deferred"


def test_letters_that_vanish_elsewhere_are_missed_by_nobody(transport: Transport, letter: Make) -> None:
    """It ends as soon as the broker has no more than is in hand, and does not take them to be in other hands."""
    put(transport, *(letter(n) for n in range(5)))
    before = look(transport)
    with Sweep(before) as other:
        for one in other.chosen(Selection(limit=2)):
            other.take(one)
    with Sweep(before) as sweep:
        assert len(list(sweep.chosen(Selection()))) == 3
    assert (sweep.seen, sweep.expected, sweep.cut_short) == (3, 5, "")
    assert look(transport).count == 3


def test_letters_that_vanish_while_they_are_in_hand_end_it_too(embedded: Server, letter: Make) -> None:
    transport = opened(embedded)
    put(transport, *(letter(n) for n in range(5)))
    before = look(transport)
    with Sweep(before) as other:
        for one in other.chosen(Selection(limit=1)):
            other.take(one)
    with Sweep(before) as sweep:
        for _ in sweep.chosen(Selection()):
            if sweep.seen == 4:
                embedded.http(f"/channel/empty?topic={TOPIC}&channel=dead", b"")
    assert (sweep.seen, sweep.cut_short) == (4, "")


def test_of_two_handlers_that_share_a_topic_each_has_its_own_letters(transport: Transport, letter: Make) -> None:
    """orders.eu/billing and orders/eu.billing make one name of theirs."""
    mine = [letter(n, topic="orders", channel="eu.billing") for n in range(3)]
    theirs = [letter(n, topic="orders.eu", channel="billing") for n in range(10, 15)]
    put(transport, *theirs, *mine, topic="orders.eu.billing.dead")
    topic = look(transport)
    owner = meant(topic, ["orders/eu.billing", "payments/other"])
    with Sweep(owner) as sweep:
        assert [one.channel for one in sweep.chosen(Selection(limit=2))] == ["eu.billing", "eu.billing"]
    with Sweep(owner) as sweep:
        for one in sweep.chosen(Selection()):
            sweep.take(one)
    assert sweep.left_behind == 0
    with Sweep(look(transport)) as sweep:
        left = list(sweep.chosen(Selection()))
    assert sorted({(one.topic, one.channel) for one in left}) == [("orders.eu", "billing")]
    assert len(left) == 5
    assert meant(topic, ["orders/eu.billing", "orders.eu/billing"]).owners == {("orders", "eu.billing"), ("orders.eu", "billing")}
    for everything in ("orders.eu.billing", "orders.eu.billing.dead"):
        assert meant(topic, ["orders/eu.billing", everything]).owners == frozenset()


def test_a_letter_of_which_only_the_body_was_kept_is_everybodys(transport: Transport) -> None:
    put(transport, b"only a body")
    with Sweep(meant(look(transport), ["orders/billing"])) as sweep:
        assert bodies(list(sweep.chosen(Selection()))) == [b"only a body"]


def test_letters_that_die_meanwhile_are_for_the_next_time(transport: Transport, letter: Make) -> None:
    """Or a replay to a handler that still rejects would go round for ever."""
    put(transport, *(letter(n) for n in range(10)))
    with Sweep(look(transport)) as sweep:
        for one in sweep.chosen(Selection()):
            sweep.take(one)
            put(transport, letter(int(one.id)))
    assert sweep.seen == 10
    assert look(transport).count == 10


def test_an_empty_topic_is_not_even_connected_to(transport: Transport, letter: Make) -> None:
    put(transport, letter(1))
    with Sweep(look(transport)) as sweep:
        for one in sweep.chosen(Selection()):
            sweep.take(one)
    for topic in find([transport]):  # a broker may have forgotten a topic that is empty
        with Sweep(topic) as again:
            assert list(again.chosen(Selection())) == []


def test_replay_stores_each_body_where_it_came_from(transport: Transport, letter: Make) -> None:
    put(transport, *(letter(n) for n in range(250)))
    with Sweep(look(transport)) as sweep:
        replay = Replay(sweep)
        assert list(replay.run(sweep.chosen(Selection()))) == [100, 200, 250]  # a hundred under way at once
    assert (replay.replayed, replay.failed, replay.targets, sweep.left_behind) == (250, 0, {"orders"}, 0)
    assert sum(transport.backlog("orders", "billing").values()) == 250
    assert sum(transport.backlog(TOPIC, "dead").values()) == 0


def test_of_large_letters_fewer_are_under_way_at_once(letter: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "CHUNK_BYTES", 14)  # as many as two of `body 1`, and a bit
    [transport] = open_transports([f"memory://sweep-{next(_numbers)}"])
    put(transport, *(letter(n) for n in range(7)))
    with Sweep(look(transport)) as sweep:
        assert list(Replay(sweep).run(sweep.chosen(Selection()))) == [3, 6, 7]


def test_a_body_without_a_header_needs_to_be_told_where_to_go(transport: Transport, letter: Make) -> None:
    put(transport, b"only a body", letter(1))
    with Sweep(look(transport)) as sweep:
        replay = Replay(sweep)
        list(replay.run(sweep.chosen(Selection())))
    assert (replay.replayed, replay.failed) == (1, 1)
    assert "name the topic with --to" in replay.why_failed
    assert read_all(transport) == [b"only a body"]
    with Sweep(look(transport)) as sweep:
        replay = Replay(sweep, to="elsewhere")
        list(replay.run(sweep.chosen(Selection())))
    assert (replay.replayed, replay.failed, replay.targets) == (1, 0, {"elsewhere"})


@pytest.mark.real
def test_a_topic_with_other_channels_is_replayed_to_only_when_told(nsqd: Server, letter: Make) -> None:
    transport = opened(nsqd)
    put(transport, letter(1), letter(2))
    nsqd.http("/topic/create?topic=orders", b"")
    for channel in ("billing", "audit"):
        nsqd.http(f"/channel/create?topic=orders&channel={channel}", b"")
    with Sweep(look(transport)) as sweep, pytest.raises(WrongUse, match="'orders' has the channels audit, billing"):
        list(Replay(sweep).run(sweep.chosen(Selection())))
    assert look(transport).count == 2
    assert nsqd.channel_stats("orders", "audit")["message_count"] == 0
    with Sweep(look(transport)) as sweep:
        list(Replay(sweep, all_channels=True).run(sweep.chosen(Selection())))
    with gevent.Timeout(10):  # a topic hands over after its answer
        while nsqd.channel_stats("orders", "audit")["message_count"] != 2:
            gevent.sleep(0.05)
    assert look(transport).count == 0


@pytest.mark.real
def test_more_letters_than_one_connection_may_hold(start_nsqd: Callable[..., Server], letter: Make) -> None:
    transport = opened(start_nsqd("--max-rdy-count=5"))
    put(transport, *(letter(n) for n in range(23)))
    assert read_all(transport) == sorted(b"body %d" % n for n in range(23))


def test_letters_in_hand_keep_their_leases(tmp_path: Path, letter: Make) -> None:
    """On the embedded nsqd: a real one looks at the leases of a new channel only after five seconds."""
    with running(embedded_nsqd(tmp_path, "--msg-timeout=1s")) as nsqd:
        transport = opened(nsqd)
        put(transport, *(letter(n) for n in range(5)))
        with Sweep(look(transport)) as sweep:
            held = list(sweep.chosen(Selection()))
            gevent.sleep(3)
            for one in held:
                sweep.take(one)
        assert sweep.left_behind == 0
        stats = nsqd.channel_stats(TOPIC, "dead")
        assert (stats["depth"], stats["in_flight_count"], stats["timeout_count"]) == (0, 0, 0)


@pytest.mark.real
def test_letters_on_several_nodes_are_one_topic(
    start_nsqd: Callable[..., Server], start_nsqlookupd: Callable[..., Server], letter: Make
) -> None:
    lookupd = start_nsqlookupd()
    first, second, empty = (start_nsqd(f"--lookupd-tcp-address={lookupd.address}") for _ in range(3))
    put(opened(first), letter(1), letter(2))
    put(opened(second), letter(3))
    [transport] = open_transports([f"nsq+lookupd://{lookupd.http_address}"])
    expected = {first.address: 2, second.address: 1}
    deadline = time.monotonic() + 30
    while not (found := find([transport])) or found[0].nodes != expected:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert read_all(transport) == [b"body 1", b"body 2", b"body 3"]
    assert empty.http("/stats?format=json")["topics"] == []


@pytest.mark.real
def test_a_node_that_goes_away_ends_it(nsqd: Server, letter: Make) -> None:
    transport = opened(nsqd)
    put(transport, *(letter(n) for n in range(150)))
    with pytest.raises(BrokerUnreachable), Sweep(look(transport)) as sweep:
        for one in sweep.chosen(Selection()):
            sweep.take(one)
            if sweep.seen == 10:
                nsqd.kill()


@pytest.mark.real
def test_letters_that_another_channel_has_are_found_there(nsqd: Server, letter: Make) -> None:
    transport = opened(nsqd)
    nsqd.http(f"/topic/create?topic={TOPIC}", b"")
    nsqd.http(f"/channel/create?topic={TOPIC}&channel=alerts", b"")
    put(transport, letter(1))
    topic = look(transport)
    assert (topic.channel, topic.count) == ("alerts", 1)
    [asked] = find([transport], [TOPIC], channel="alerts")
    with Sweep(asked) as sweep:
        assert bodies(list(sweep.chosen(Selection()))) == [b"body 1"]
