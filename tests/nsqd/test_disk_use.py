"""Disk use returns when messages are finished, all of them or all but one, and a long backlog stays out of memory."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import psutil

from framework.testing.servers import Server

COUNT = 200_000
BODY = b"x" * 200
_BATCH = struct.pack(">i", 500) + (struct.pack(">i", len(BODY)) + BODY) * 500
MPUB = b"MPUB t\n" + struct.pack(">i", len(_BATCH)) + _BATCH


def used(server: Server) -> int:
    return sum(file.stat().st_size for file in server.data.rglob("*") if file.is_file())


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_folder_is_small_again_when_all_but_one_are_finished(ours: Server, talk: Callable[..., Any]) -> None:
    ours.http("/topic/create?topic=t", b"")
    ours.http("/channel/create?topic=t&channel=c", b"")
    publisher = talk(ours)
    for done in range(0, COUNT // 500, 20):
        publisher.send(MPUB * 20)
        publisher.reply(done + 20, 60)
    assert used(ours) > COUNT * len(BODY)
    assert ours.process is not None
    assert psutil.Process(ours.process.pid).memory_info().rss < 150 << 20
    consumer = talk(ours)
    consumer.send(b"SUB t c\nRDY 2500\n")
    finished, kept = 0, b""
    while finished < COUNT:
        consumer.get(1)
        ids = [one[0] for one in consumer.messages]
        consumer.forget()
        if not kept and finished > COUNT // 2:
            kept = ids.pop()
            finished += 1
            consumer.send(b"REQ " + kept + b" 3000000\n")
        finished += len(ids)
        consumer.send(b"".join(b"FIN " + one + b"\n" for one in ids))
    wait_for(lambda: used(ours) < 5 << 20)
    stats = ours.channel_stats("t", "c")
    assert (stats["depth"], stats["deferred_count"]) == (0, 1)
    ours.kill()
    ours.start()
    assert ours.channel_stats("t", "c")["deferred_count"] == 1


def test_what_waits_for_its_time_or_for_another_try_stays_out_of_memory(ours: Server, talk: Callable[..., Any]) -> None:
    assert ours.process is not None
    process = psutil.Process(ours.process.pid)
    consumer, publisher = talk(ours), talk(ours)
    consumer.send(b"SUB later c\n")
    consumer.reply(1)
    before = process.memory_info().rss
    bodies = [b"%03d" % at + b"x" * 400_000 for at in range(300)]
    for at, body in enumerate(bodies):
        publisher.send(b"DPUB later 1000\n" + struct.pack(">i", len(body)) + body)
        publisher.reply(at + 1, 30)
    wait_for(lambda: bool(ours.channel_stats("later", "c")["depth"] == len(bodies)))
    wait_for(lambda: process.memory_info().rss - before < 50 << 20, 5)  # of which 16 MiB are the newest messages of all
    for tries in (1, 2):
        consumer.forget()
        consumer.send(b"RDY 300\n")
        came = consumer.get(len(bodies), 60)
        assert [(tried, body) for _, tried, body in sorted(came, key=lambda one: one[2])] == [(tries, body) for body in bodies]
        wait_for(lambda: process.memory_info().rss - before < 50 << 20, 5)  # while they are in flight
        consumer.send(b"RDY 0\n" + b"".join(b"REQ %b 0\n" % message_id for message_id, _, _ in came))
        wait_for(lambda: bool(ours.channel_stats("later", "c")["depth"] == len(bodies)))
        wait_for(lambda: process.memory_info().rss - before < 50 << 20, 5)
