"""Clients of every kind: ephemeral channels and topics, slow, silent and flooding clients, sampling."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from framework.testing.servers import Server
from tests.nsqd.speaking import Talks, bodies, bodies_of, eventually, fin, identify, mpub, pub, sized


def test_an_ephemeral_channel_goes_with_its_last_client(ours: Server, talk: Talks) -> None:
    one, two = talk(ours), talk(ours)
    for client in (one, two):
        client.send(b"SUB kept c#ephemeral\nRDY 5\n")
        client.reply(1)
    one.close()
    assert eventually(lambda: ours.channel_stats("kept", "c#ephemeral")["client_count"] == 1)
    two.close()
    assert eventually(lambda: ours.channel_stats("kept", "c#ephemeral") == {})
    assert [one["topic_name"] for one in ours.http("/stats?format=json")["topics"]] == ["kept"]


def test_an_ephemeral_topic_goes_with_its_last_channel_and_with_the_process(ours: Server, talk: Talks) -> None:
    client = talk(ours)
    client.send(b"SUB t#ephemeral c#ephemeral\nRDY 5\n" + pub("t#ephemeral", b"a"))
    assert bodies_of(client.get(1)) == [b"a"]
    client.close()
    assert eventually(lambda: ours.http("/stats?format=json")["topics"] == [])
    ours.http("/pub?topic=u%23ephemeral", b"a")
    ours.stop()
    ours.start()
    assert ours.http("/stats?format=json")["topics"] == []


def test_an_ephemeral_channel_drops_what_it_cannot_hold(start_embedded: Callable[..., Server], talk: Talks) -> None:
    server = start_embedded("--mem-queue-size=100")
    client = talk(server)
    client.send(b"SUB drop c#ephemeral\n")
    client.reply(1)
    server.http("/channel/create?topic=drop&channel=kept", b"")
    for _ in range(5):
        server.http("/mpub?topic=drop", b"\n".join([b"x"] * 50))
    assert server.channel_stats("drop", "c#ephemeral")["depth"] == 100
    assert server.channel_stats("drop", "kept")["depth"] == 250
    client.send(b"RDY 2500\n")
    client.send(fin(*[message_id for message_id, _, _ in client.get(100)]))
    client.read(0.2)
    assert len(client.messages) == 100, "what was dropped is in the log for another channel, and does not come back"


def test_an_ephemeral_channel_does_not_lose_what_others_have_finished(shared: Server, talk: Talks) -> None:
    one, two = talk(shared), talk(shared)
    one.send(b"SUB slow c#ephemeral\n")
    two.send(b"SUB slow c\nRDY 2500\n")
    one.reply(1), two.reply(1)
    two.send(mpub("slow", *[b"x" * 900 for _ in range(2000)]))
    two.send(fin(*[message_id for message_id, _, _ in two.get(2000)]))
    assert eventually(lambda: shared.channel_stats("slow", "c")["in_flight_count"] == 0)
    one.send(b"RDY 2500\n")
    assert len(one.get(2000)) == 2000


def test_heartbeats_come_on_time_whatever_the_traffic(shared: Server, talk: Talks) -> None:
    client = talk(shared)
    client.send(identify(heartbeat_interval=1000) + b"SUB beat c\nRDY 2500\n")
    until, times = time.monotonic() + 3.4, []
    while time.monotonic() < until:
        client.send(mpub("beat", *[b"x" * 100] * 100) + fin(*[message_id for message_id, _, _ in client.messages]))
        client.read(0.05)
        if any(data == b"_heartbeat_" for _, data in client.frames):
            times.append(time.monotonic())
        client.forget()
    assert len(times) == 3


def test_a_silent_client_is_closed_after_two_heartbeats_without_a_word(shared: Server, talk: Talks) -> None:
    client = talk(shared)
    client.send(identify(heartbeat_interval=1000))
    start = time.monotonic()
    assert client.until(lambda: client.closed, 5)
    assert 1.9 < time.monotonic() - start < 3
    assert client.replies == [b"OK"]


def test_a_client_that_never_reads_is_closed_and_holds_up_nobody(ours: Server, talk: Talks) -> None:
    greedy = talk(ours)
    greedy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    greedy.send(identify(heartbeat_interval=1000) + b"SUB greedy c\nRDY 2500\n")
    other = talk(ours)
    for _ in range(40):
        other.send(mpub("greedy", *[b"x" * 100_000] * 10))
    other.reply(40, 30)
    assert eventually(lambda: ours.channel_stats("greedy", "c")["client_count"] == 0, 15)
    status = Path(f"/proc/{ours.process.pid}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 200_000


def test_a_flood_of_commands_does_not_starve_other_clients(shared: Server, talk: Talks) -> None:
    flood, other = talk(shared), talk(shared)
    nops = b"NOP\n" * 50_000
    slowest = 0.0
    for at in range(20):
        flood.send(nops)
        start = time.monotonic()
        other.send(pub("calm", b"x"))
        other.reply(at + 1)
        slowest = max(slowest, time.monotonic() - start)
    assert slowest < 5  # a flood is about 0.15 s of work; the bound is for a busy machine


def test_pipelined_publishes_up_to_the_first_wrong_one_are_answered_and_kept(shared: Server, talk: Talks) -> None:
    client = talk(shared)
    client.send(pub("run", b"1", b"2") + pub("aside", b"x") + pub("run", b"3") + b"PUB run\n" + sized(b"") + pub("run", b"4"))
    assert client.reply(5) == [b"OK"] * 4 + [b"E_BAD_MESSAGE PUB invalid message body size 0"]
    assert client.until(lambda: client.closed)
    assert shared.http("/stats?format=json&topic=run")["topics"][0]["depth"] == 3
    consumer = talk(shared)
    consumer.send(b"SUB run c\nRDY 10\n")
    consumer.get(3)
    assert bodies(consumer) == [b"1", b"2", b"3"]


def test_sampling_delivers_about_its_share(shared: Server, talk: Talks) -> None:
    client = talk(shared)
    client.send(identify(sample_rate=20) + b"SUB sample c\nRDY 2500\n" + mpub("sample", *[b"x"] * 2000))
    client.reply(3)
    assert eventually(lambda: shared.channel_stats("sample", "c")["depth"] == 0)
    client.until(lambda: False, 0.3)
    assert 280 < len(client.messages) < 580
    assert Counter(bodies(client)) == {b"x": len(client.messages)}
