"""#ephemeral channels and topics: what is to come again, where other messages were dropped or emptied."""

from __future__ import annotations

from collections.abc import Callable

from framework.testing.servers import Server
from tests.nsqd.speaking import Talks, bodies_of, fin, mpub


def test_what_an_ephemeral_channel_requeues_comes_again_also_where_newer_messages_were_dropped(
    start_embedded: Callable[..., Server], talk: Talks
) -> None:
    server = start_embedded("--mem-queue-size=100")
    client = talk(server)
    client.send(b"SUB drop c#ephemeral\n")
    client.reply(1)
    for _ in range(5):
        server.http("/mpub?topic=drop", b"\n".join([b"x"] * 50))
    client.send(b"RDY 2500\n")
    first, *others = [message_id for message_id, _, _ in client.get(100)]
    client.send(fin(*others) + b"REQ " + first + b" 0\n")
    assert [attempts for _, attempts, _ in client.get(101)[100:]] == [2]


def test_what_an_ephemeral_channel_requeues_comes_again_after_its_topic_was_emptied(ours: Server, talk: Talks) -> None:
    client = talk(ours)
    client.send(b"SUB t c#ephemeral\nRDY 1\n" + mpub("t", b"a"))
    ((message_id, _, _),) = client.get(1)
    ours.http("/topic/pause?topic=t", b"")
    ours.http("/mpub?topic=t", b"b\nc")
    ours.http("/topic/empty?topic=t", b"")
    ours.http("/topic/unpause?topic=t", b"")
    client.send(b"REQ " + message_id + b" 0\n")
    assert bodies_of(client.get(2)) == [b"a", b"a"]


def test_what_an_ephemeral_topic_dropped_holds_up_no_requeued_message(start_embedded: Callable[..., Server], talk: Talks) -> None:
    server = start_embedded("--mem-queue-size=100")
    client = talk(server)
    client.send(b"SUB t#ephemeral c\n")
    client.reply(1)
    for _ in range(5):
        server.http("/mpub?topic=t%23ephemeral", b"\n".join([b"x"] * 50))
    client.send(b"RDY 2500\n")
    first, *others = [message_id for message_id, _, _ in client.get(100)]
    client.send(fin(*others) + b"REQ " + first + b" 0\n")
    assert [attempts for _, attempts, _ in client.get(101)[100:]] == [2]


def test_an_ephemeral_channel_that_is_full_takes_what_is_deferred(start_embedded: Callable[..., Server], talk: Talks) -> None:
    server = start_embedded("--mem-queue-size=100")
    client = talk(server)
    client.send(b"SUB full c#ephemeral\n")
    client.reply(1)
    server.http("/mpub?topic=full", b"\n".join([b"x"] * 100))
    server.http("/pub?topic=full&defer=500", b"later")
    server.http("/pub?topic=full", b"dropped")
    assert server.channel_stats("full", "c#ephemeral")["deferred_count"] == 1
    client.send(b"RDY 2500\n")
    assert bodies_of(client.get(101))[100:] == [b"later"]
