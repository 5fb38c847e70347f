"""How messages travel: leases, requeues, deferral, attempts, ephemeral names, slow and silent clients, restarts."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from framework.testing.servers import Server
from tests.nsqd.speaking import Talks, bodies, bodies_of, eventually, fin, identify, mpub, pub, sized


def test_every_channel_gets_every_message_with_the_same_id(shared: Server, talk: Talks) -> None:
    one, two = talk(shared), talk(shared)
    one.send(b"SUB fan a\nRDY 10\n")
    two.send(b"SUB fan b\nRDY 10\n")
    one.reply(1), two.reply(1)
    one.send(mpub("fan", b"x", b"y"))
    assert [message[0] for message in one.get(2)] == [message[0] for message in two.get(2)]


def test_the_first_channel_gets_the_backlog_and_the_second_what_comes_after(shared: Server, talk: Talks) -> None:
    one, two = talk(shared), talk(shared)
    one.send(pub("late", b"1", b"2") + b"SUB late a\nRDY 10\n")
    assert len(one.get(2)) == 2
    two.send(b"SUB late b\nRDY 10\n")
    two.reply(1)
    two.send(pub("late", b"3"))
    two.get(1)
    assert bodies(two) == [b"3"]


def test_consumers_of_a_channel_share_its_messages(shared: Server, talk: Talks) -> None:
    clients = [talk(shared) for _ in range(4)]
    for client in clients:
        client.send(b"SUB share c\nRDY 100\n")
        client.reply(1)
    shared.http("/mpub?topic=share", b"\n".join(b"%d" % at for at in range(200)))
    assert eventually(lambda: shared.channel_stats("share", "c")["in_flight_count"] == 200)
    for client in clients:
        client.get(50)
    assert sorted(int(body) for client in clients for body in bodies(client)) == list(range(200))


@pytest.mark.parametrize("ready", [1, 7, 2500])
def test_in_flight_never_exceeds_ready(shared: Server, talk: Talks, ready: int) -> None:
    client = talk(shared)
    client.send(b"SUB limit c\n" + b"".join(mpub("limit", *[b"%d" % at for at in range(1000)]) for _ in range(3)))
    client.reply(4)
    client.send(b"RDY %d\n" % ready)
    finished = 0
    while finished < 3000:
        client.get(finished + 1)
        assert len(client.messages) - finished <= ready
        fresh = [message[0] for message in client.messages[finished:]]
        finished += len(fresh)
        client.send(fin(*fresh))
    assert [int(body) for body in bodies(client)] == list(range(1000)) * 3


def test_a_lease_ends_on_time_and_the_message_comes_again(shared: Server, talk: Talks) -> None:
    client = talk(shared)
    client.send(identify(msg_timeout=1000) + b"SUB lease c\nRDY 1\n" + pub("lease", b"a"))
    client.get(1)
    start = time.monotonic()
    (first, second) = client.get(2)
    assert 0.95 < time.monotonic() - start < 1.3
    assert (first[0], first[1], second[1]) == (second[0], 1, 2)


def test_a_touched_message_is_kept_until_the_maximum_and_no_longer(start_embedded: Callable[..., Server], talk: Talks) -> None:
    client = talk(start_embedded("--max-msg-timeout=2s"))
    client.send(identify(msg_timeout=1000) + b"SUB touch c\nRDY 1\n" + pub("touch", b"a"))
    ((message_id, _, _),) = client.get(1)
    start = time.monotonic()
    while len(client.messages) == 1 and time.monotonic() - start < 5:
        client.send(b"TOUCH " + message_id + b"\n")
        client.read(0.2)
    assert 1.9 < time.monotonic() - start < 2.5


def test_a_disconnected_consumers_messages_wait_out_their_lease(shared: Server, talk: Talks) -> None:
    server = shared
    one, two = talk(server), talk(server)
    one.send(identify(msg_timeout=1000) + b"SUB gone c\nRDY 1\n" + pub("gone", b"a"))
    one.get(1)
    start = time.monotonic()
    one.close()
    two.send(b"SUB gone c\nRDY 1\n")
    two.reply(1)
    assert server.channel_stats("gone", "c")["in_flight_count"] == 1
    ((_, attempts, body),) = two.get(1)
    assert 0.8 < time.monotonic() - start < 1.4
    assert (attempts, body) == (2, b"a")


def test_another_clients_message_cannot_be_finished(shared: Server, talk: Talks) -> None:
    one, two = talk(shared), talk(shared)
    one.send(b"SUB own c\nRDY 1\n" + pub("own", b"a"))
    ((message_id, _, _),) = one.get(1)
    two.send(b"SUB own c\n" + fin(message_id) + b"REQ " + message_id + b" 0\nTOUCH " + message_id + b"\n")
    refusals = two.reply(4)[1:]
    assert [reply.split()[0] for reply in refusals] == [b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"]
    assert all(reply.endswith(b" failed client does not own message") for reply in refusals)


@pytest.mark.parametrize("delay", [0, 1, 30, 200, 700])
def test_deferred_and_requeued_messages_come_on_time(shared: Server, talk: Talks, delay: int) -> None:
    client = talk(shared)
    client.send(b"SUB due c\nRDY 10\n")
    client.reply(1)
    for round_ in range(2):
        start = time.monotonic()
        if round_ == 0:
            client.send(b"DPUB due %d\n" % delay + sized(b"a"))
        else:
            client.send(b"REQ " + client.messages[0][0] + b" %d\n" % delay)
        client.get(round_ + 1)
        late = time.monotonic() - start - delay / 1000
        assert -0.005 <= late < 0.25  # measured: 2 ms on a quiet machine; the bound is for a busy one
    assert [attempts for _, attempts, _ in client.messages] == [1, 2]


def test_large_messages_that_are_given_back_come_again_whole(shared: Server, talk: Talks) -> None:
    """More bytes than are kept in memory for what is in flight."""
    consumer = talk(shared)
    consumer.send(b"SUB large c\nRDY 100\n")
    bodies = [b"%03d" % at + b"x" * 30_000 for at in range(100)]
    publisher = talk(shared)
    publisher.send(mpub("large", *bodies))
    first = consumer.get(100)
    consumer.send(b"".join(b"REQ %b 0\n" % message_id for message_id, _, _ in first))
    again = consumer.get(200)[100:]
    assert sorted(body for _, _, body in again) == bodies
    assert {attempts for _, attempts, _ in again} == {2}


def test_a_deferred_message_does_not_hold_up_the_others(shared: Server, talk: Talks) -> None:
    client = talk(shared)
    client.send(b"SUB mix c\nRDY 10\nDPUB mix 1500\n" + sized(b"later") + pub("mix", b"1", b"2"))
    client.get(3)
    assert bodies(client) == [b"1", b"2", b"later"]


def test_a_deferred_publish_waits_also_across_a_kill(ours: Server, talk: Talks) -> None:
    client = talk(ours)
    start = time.time()
    client.send(b"SUB away c\nDPUB away 1500\n" + sized(b"a") + b"DPUB away 60000\n" + sized(b"b"))
    client.reply(3)
    ours.kill()
    ours.start()
    again = talk(ours)
    again.send(b"SUB away c\nRDY 10\n")
    assert bodies_of(again.get(1, 30)) == [b"a"]  # however long the restart took, with the deadlines of both as they were
    assert time.time() - start >= 1.499  # due times are whole milliseconds
    assert eventually(lambda: ours.channel_stats("away", "c")["deferred_count"] == 1)


def test_attempts_survive_a_kill(ours: Server, talk: Talks) -> None:
    client = talk(ours)
    client.send(b"SUB tries c\nRDY 1\n" + pub("tries", b"a"))
    for count in (1, 2, 3):
        client.send(b"REQ " + client.get(count)[-1][0] + b" 0\n")
    client.get(4)
    time.sleep(0.3)  # the states are saved every 50 ms
    ours.kill()
    ours.start()
    again = talk(ours)
    again.send(b"SUB tries c\nRDY 1\n")
    ((_, attempts, _),) = again.get(1)
    assert attempts == 5


def test_a_clean_stop_keeps_everything_and_brings_nothing_back(ours: Server, talk: Talks) -> None:
    client = talk(ours)
    client.send(b"SUB clean c\nRDY 10\n" + mpub("clean", *[b"%d" % at for at in range(10)]))
    ids = [message_id for message_id, _, _ in client.get(10)]
    client.send(fin(*ids[:6]) + b"REQ " + ids[6] + b" 60000\nNOP\n")
    assert eventually(lambda: ours.channel_stats("clean", "c")["in_flight_count"] == 3)
    assert ours.stop() == 0
    ours.start()
    stats = ours.channel_stats("clean", "c")
    assert (stats["depth"], stats["deferred_count"]) == (3, 1)
    again = talk(ours)
    again.send(b"SUB clean c\nRDY 10\n")
    assert sorted(bodies_of(again.get(3))) == [b"7", b"8", b"9"]


def test_a_second_restart_brings_back_nothing_that_was_finished_after_the_first(ours: Server, talk: Talks) -> None:
    client = talk(ours)
    client.send(b"SUB twice c\nRDY 5\n" + mpub("twice", *[b"%d" % at for at in range(100)]))
    client.get(5)
    time.sleep(0.2)
    ours.kill()
    ours.start()
    again = talk(ours)
    again.send(b"SUB twice c\nRDY 200\n")
    again.send(fin(*[message_id for message_id, _, _ in again.get(100)]) + b"NOP\n")
    assert eventually(lambda: ours.channel_stats("twice", "c")["in_flight_count"] == 0)
    time.sleep(0.2)
    ours.kill()
    ours.start()
    stats = ours.channel_stats("twice", "c")
    assert (stats["depth"], stats["in_flight_count"], stats["deferred_count"]) == (0, 0, 0)


def test_a_backlog_bigger_than_memory_comes_from_the_log_in_order(shared: Server, talk: Talks) -> None:
    """20 MB: more than is kept of what was written lately."""
    client = talk(shared)
    body = b"x" * 1990
    for at in range(20):
        client.send(mpub("big", *[b"%05d" % (500 * at + one) + body for one in range(500)]))
    client.reply(20, 60)
    client.send(b"SUB big c\nRDY 500\n")
    finished = 0
    while finished < 10000:
        client.get(finished + 1)
        fresh = [message[0] for message in client.messages[finished:]]
        finished += len(fresh)
        client.send(fin(*fresh))
    assert [int(body[:5]) for body in bodies(client)] == list(range(10000))


def test_a_messages_body_is_found_again_after_a_restart(ours: Server, talk: Talks) -> None:
    client = talk(ours)
    client.send(b"SUB again c\nRDY 100\n" + mpub("again", *[b"%d" % at for at in range(100)]))
    ids = [message_id for message_id, _, _ in client.get(100)]
    client.send(b"".join(b"REQ " + one + b" 300\n" for one in ids[::2]) + fin(*ids[1::2]) + b"NOP\n")
    assert eventually(lambda: ours.channel_stats("again", "c")["in_flight_count"] == 0)
    assert ours.stop() == 0
    ours.start()
    again = talk(ours)
    again.send(b"SUB again c\nRDY 100\n")
    found = {message_id: (attempts, body) for message_id, attempts, body in again.get(50)}
    assert found == {one: (2, b"%d" % (2 * at)) for at, one in enumerate(ids[::2])}


def test_pauses_survive_a_kill(ours: Server, talk: Talks) -> None:
    for name in ("topic", "channel"):
        ours.http(f"/topic/create?topic=p{name}", b"")
        ours.http(f"/channel/create?topic=p{name}&channel=c", b"")
        ours.http(f"/{name}/pause?topic=p{name}&channel=c", b"")
    ours.kill()
    ours.start()
    topics = {one["topic_name"]: one for one in ours.http("/stats?format=json")["topics"]}
    assert topics["ptopic"]["paused"]
    assert topics["pchannel"]["channels"][0]["paused"]


def test_what_was_deleted_or_emptied_stays_so_across_a_kill(ours: Server, talk: Talks) -> None:
    for name in ("gone", "bare", "hollow"):
        ours.http(f"/mpub?topic={name}", b"1\n2\n3")
    ours.http("/channel/create?topic=bare&channel=c", b"")
    ours.http("/topic/delete?topic=gone", b"")
    ours.http("/channel/empty?topic=bare&channel=c", b"")
    ours.http("/topic/empty?topic=hollow", b"")
    ours.kill()
    ours.start()
    topics = {one["topic_name"]: one for one in ours.http("/stats?format=json")["topics"]}
    assert set(topics) == {"bare", "hollow"}
    assert topics["bare"]["channels"][0]["depth"] == topics["hollow"]["depth"] == 0
    ours.http("/pub?topic=hollow", b"4")
    client = talk(ours)
    client.send(b"SUB hollow c\nRDY 10\n")
    assert bodies_of(client.get(1)) == [b"4"]
