"""``nsqd --drain-to``: all that a folder holds, counted, in a real nsqd afterwards; killed midway, it loses nothing."""

from __future__ import annotations

import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framework.errors import BrokerError
from framework.nsqd.drain import TOGETHER, NotDrained, Target
from framework.testing.proxy import Proxy
from framework.testing.servers import Server
from framework.transports.nsq.http import Nsqd

pytestmark = pytest.mark.real
KILLS = 4
MANY = 20_000


def command(folder: Path, target: Server, *flags: str, address: str = "") -> list[str]:
    url = f"nsq://{address or target.address}?http_port={target.http_port}"
    return [sys.executable, "-m", "framework.nsqd", f"--data-path={folder}", f"--drain-to={url}", *flags]


def drain(folder: Path, target: Server, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, target, *flags), capture_output=True, text=True, timeout=120, check=False)


def make(server: Server, topic: str, *channels: str) -> None:
    server.http(f"/topic/create?topic={topic}", b"")
    for channel in channels:
        server.http(f"/channel/create?topic={topic}&channel={channel}", b"")


def publish(server: Server, topic: str, bodies: list[bytes]) -> None:
    content = struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    server.http(f"/mpub?topic={topic}&binary=true", content)


def numbered(start: int, end: int) -> list[bytes]:
    return [b"m%d" % n for n in range(start, end)]


@pytest.fixture
def take(talk: Callable[..., Any]) -> Callable[..., list[bytes]]:
    """Finishes so many messages of a channel, or all that it has at once; returns their bodies."""

    def taken(server: Server, topic: str, channel: str, count: int | None = None) -> list[bytes]:
        if count is None:
            until(lambda: server.http(f"/stats?format=json&topic={topic}")["topics"][0]["depth"] == 0)
            count = server.channel_stats(topic, channel)["depth"]
        client = talk(server)
        client.send(b"SUB %s %s\n" % (topic.encode(), channel.encode()))
        for done in range(0, count, 2500):
            wanted = min(2500, count - done)
            client.send(b"RDY %d\n" % wanted)
            batch = client.get(done + wanted, 30)[done:]
            client.send(b"RDY 0\n" + b"".join(b"FIN " + message_id + b"\n" for message_id, _, _ in batch))
        client.send(b"CLS\n")
        client.until(lambda: b"CLOSE_WAIT" in client.replies)
        return [body for _, _, body in client.messages]

    return taken


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_waiting_deferred_and_in_flight_messages_move_and_nothing_is_left(
    ours: Server, nsqd: Server, talk: Callable[..., Any], take: Callable[..., list[bytes]]
) -> None:
    make(ours, "orders", "billing")
    publish(ours, "orders", numbered(0, 100))
    assert len(take(ours, "orders", "billing", 10)) == 10
    holder = talk(ours)
    holder.send(b"SUB orders billing\nRDY 5\n")
    held = holder.get(5)
    holder.send(b"RDY 0\nREQ " + held[0][0] + b" 3000000\nFIN " + held[1][0] + b"\n")
    ours.http("/pub?topic=orders&defer=1500000", b"later")
    publish(ours, "lonely", [b"x", b"y"])
    until(lambda: ours.channel_stats("orders", "billing")["deferred_count"] == 2)
    ours.stop()

    moved = drain(ours.data, nsqd)
    assert (moved.returncode, moved.stderr) == (0, "")
    assert moved.stdout == f"moved 92 messages, 2 topics and 1 channels to 127.0.0.1:{nsqd.tcp_port}; " + (
        f"no message is left in {ours.data}\n"
    )
    stats = nsqd.channel_stats("orders", "billing")
    assert (stats["depth"], stats["deferred_count"], stats["message_count"]) == (88, 2, 90)
    expected = set(numbered(10, 100)) - {held[0][2], held[1][2]}
    assert Counter(take(nsqd, "orders", "billing")) == Counter(expected)
    assert sorted(take_new(nsqd, "lonely", take)) == [b"x", b"y"]

    again = drain(ours.data, nsqd)
    assert (again.returncode, again.stdout.partition(",")[0]) == (0, "moved 0 messages")
    ours.start()
    assert ours.channel_stats("orders", "billing")["depth"] == 0
    assert ours.channel_stats("orders", "billing")["deferred_count"] == 0


def take_new(server: Server, topic: str, take: Callable[..., list[bytes]]) -> list[bytes]:
    make(server, topic, "first")
    return take(server, topic, "first")


def test_a_delay_goes_on_from_where_it_was(ours: Server, nsqd: Server, talk: Callable[..., Any]) -> None:
    make(ours, "t", "c")
    ours.http("/pub?topic=t&defer=4000", b"soon")
    began = time.monotonic()
    ours.stop()
    assert drain(ours.data, nsqd).returncode == 0
    client = talk(nsqd)
    client.send(b"SUB t c\nRDY 1\n")
    client.get(1, 30)
    assert time.monotonic() - began > 3.8


def test_a_delay_that_the_other_does_not_take_is_cut_and_said(ours: Server, start_nsqd: Callable[..., Server]) -> None:
    make(ours, "t", "c")
    ours.http("/pub?topic=t&defer=3000000", b"far")
    ours.stop()
    hasty = start_nsqd("--max-req-timeout=10m")
    moved = drain(ours.data, hasty)
    assert moved.returncode == 0
    assert "1 messages are deferred for longer than" in moved.stderr
    assert hasty.channel_stats("t", "c")["deferred_count"] == 1


def test_channels_that_are_at_different_places_get_what_is_theirs_and_no_more(
    ours: Server, nsqd: Server, take: Callable[..., list[bytes]]
) -> None:
    make(ours, "t", "behind", "middle", "done")
    publish(ours, "t", numbered(0, 3000))
    take(ours, "t", "middle", 1200)
    take(ours, "t", "done", 3000)
    ours.stop()
    assert drain(ours.data, nsqd).returncode == 0
    assert sorted(take(nsqd, "t", "behind")) == sorted(numbered(0, 3000))
    assert sorted(take(nsqd, "t", "middle")) == sorted(numbered(1200, 3000))
    assert nsqd.channel_stats("t", "done")["message_count"] == 0


@pytest.fixture
def scattered(ours: Server, talk: Callable[..., Any]) -> Server:
    """Stopped, with a message that only channel a has not finished, a newer one that only b has not, and one for both."""
    make(ours, "t", "a", "b")
    publish(ours, "t", [b"for a", b"for b"])
    for channel, body in ((b"a", b"for b"), (b"b", b"for a")):
        client = talk(ours)
        client.send(b"SUB t " + channel + b"\nRDY 2\n")
        (message_id,) = (one[0] for one in client.get(2) if one[2] == body)
        client.send(b"FIN " + message_id + b"\n")
        until(lambda channel=channel: ours.channel_stats("t", channel.decode())["in_flight_count"] == 1)
    publish(ours, "t", [b"for both"])
    ours.stop()
    return ours


def test_messages_that_would_go_twice_to_a_channel_are_refused_and_nothing_is_moved(scattered: Server, nsqd: Server) -> None:
    refused = drain(scattered.data, nsqd)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "nsqd: topic 't': 1 of 3 messages would go once more to a channel that has finished them or never had them (a), as NSQ "
        "publishes to all channels: let workers finish what was begun, or add --drain-all-channels; nothing was moved\n"
    )
    assert not nsqd.http("/stats?format=json")["topics"]


def test_drain_all_channels_moves_them_for_every_channel(
    scattered: Server, nsqd: Server, take: Callable[..., list[bytes]]
) -> None:
    assert drain(scattered.data, nsqd, "--drain-all-channels").returncode == 0
    assert Counter(take(nsqd, "t", "a")) == Counter([b"for a", b"for b", b"for both"])
    assert Counter(take(nsqd, "t", "b")) == Counter([b"for b", b"for both"])


def test_a_channel_that_is_only_over_there_is_named_but_one_that_watches_is_not(
    ours: Server, nsqd: Server, talk: Callable[..., Any], take: Callable[..., list[bytes]]
) -> None:
    make(ours, "t", "c")
    publish(ours, "t", [b"x"])
    ours.stop()
    make(nsqd, "t", "audit")
    refused = drain(ours.data, nsqd)
    assert refused.returncode == 1
    assert "(audit)" in refused.stderr
    nsqd.http("/channel/delete?topic=t&channel=audit", b"")
    watching = talk(nsqd)
    watching.send(b"SUB t tail#ephemeral\nRDY 1\n")
    watching.reply(1)
    assert drain(ours.data, nsqd).returncode == 0
    assert take(nsqd, "t", "c") == [b"x"]


def test_pauses_move_and_messages_of_a_paused_topic_wait_there_too(ours: Server, nsqd: Server) -> None:
    make(ours, "t", "c", "held")
    publish(ours, "t", numbered(0, 10))
    ours.http("/channel/pause?topic=t&channel=held", b"")
    ours.http("/topic/pause?topic=t", b"")
    publish(ours, "t", numbered(10, 15))
    ours.stop()
    assert drain(ours.data, nsqd).returncode == 0
    assert drain(ours.data, nsqd).returncode == 0  # as after a kill, with all channels and pauses made
    (topic,) = nsqd.http("/stats?format=json&topic=t")["topics"]
    assert (topic["paused"], topic["depth"]) == (True, 5)
    found = {one["channel_name"]: (one["paused"], one["depth"]) for one in topic["channels"]}
    assert found == {"c": (False, 10), "held": (True, 10)}


def test_a_topic_that_is_paused_over_there_is_named_with_what_to_do(nsqd: Server) -> None:
    target = Target(f"nsq://{nsqd.address}?http_port={nsqd.http_port}")
    make(nsqd, "still", "c")
    for path in ("topic/pause", "pub"):
        nsqd.http(f"/{path}?topic=still", b"x")
    with pytest.raises(NotDrained, match="it is paused there: unpause it"):
        target.wait_until_handed_over("still")
    nsqd.http("/topic/unpause?topic=still", b"")
    target.wait_until_handed_over("still")
    target.close()


def test_a_target_that_says_that_it_is_not_well_is_given_nothing(nsqd: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def ping(self: Nsqd) -> None:
        self._request("GET", "/not-well")

    monkeypatch.setattr(Nsqd, "ping", ping)
    with pytest.raises(BrokerError, match="not-well"):
        Target(f"nsq://{nsqd.address}?http_port={nsqd.http_port}")


@pytest.mark.slow
def test_killed_at_random_moments_it_loses_nothing_and_repeats_little(
    ours: Server, nsqd: Server, take: Callable[..., list[bytes]], start_proxy: Callable[[str], Proxy]
) -> None:
    make(ours, "many", "c")
    make(ours, "two", "a", "b")
    for at in range(0, MANY, 1000):
        publish(ours, "many", numbered(at, at + 1000))
        publish(ours, "two", numbered(at, at + 1000))
    take(ours, "two", "b", MANY // 2)
    ours.stop()

    slow = start_proxy(nsqd.address)
    cuts = sorted(random.sample(range(1, 2 * MANY - 1), KILLS))
    for at, cut in enumerate(cuts):
        slow.delay(0.01)  # so that it does not end before it is killed
        process = subprocess.Popen(command(ours.data, nsqd, f"--tcp-address={ours.address}", address=slow.address))
        try:
            until(lambda cut=cut, process=process: published(nsqd) >= cut or process.poll() is not None)
            assert not listens(ours.tcp_port)
            (slow.to_client if at % 2 else slow.to_server).hold()  # a group is lost on its way, or only its OK
            time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        slow.cut()
        slow.restore()
    assert drain(ours.data, nsqd).returncode == 0

    for topic, channel, expected in (
        ("many", "c", numbered(0, MANY)),
        ("two", "a", numbered(0, MANY)),
        ("two", "b", numbered(MANY // 2, MANY)),
    ):
        got = Counter(take(nsqd, topic, channel))
        assert got.keys() == set(expected)
        assert got.total() - len(expected) <= KILLS * TOGETHER


def published(server: Server) -> int:
    return sum(topic["message_count"] for topic in server.http("/stats?format=json")["topics"] or [])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_stopped_by_a_signal_it_says_what_is_left(ours: Server, nsqd: Server, take: Callable[..., list[bytes]]) -> None:
    make(ours, "t", "c")
    for at in range(0, MANY, 1000):
        publish(ours, "t", numbered(at, at + 1000))
    ours.stop()
    process = subprocess.Popen(command(ours.data, nsqd), stderr=subprocess.PIPE, text=True)
    until(lambda: published(nsqd) > 0)
    process.terminate()
    _, said = process.communicate(timeout=30)
    if process.returncode:  # else it was quicker
        assert process.returncode == 1
        assert f" of {MANY} messages are moved; run this again for the others" in said
    assert drain(ours.data, nsqd).returncode == 0
    assert Counter(take(nsqd, "t", "c")) == Counter(numbered(0, MANY))


def test_a_folder_that_is_served_is_refused(ours: Server, nsqd: Server) -> None:
    refused = drain(ours.data, nsqd)
    assert refused.returncode == 1
    assert "is in use by another nsqd" in refused.stderr


def test_messages_that_are_too_large_for_the_other_are_refused(
    start_embedded: Callable[..., Server], start_nsqd: Callable[..., Server]
) -> None:
    own, small = start_embedded(), start_nsqd("--max-msg-size=1000")
    own.http("/pub?topic=t", b"x" * 1001)
    own.http("/pub?topic=t", b"y")
    own.stop()
    refused = drain(own.data, small)
    assert refused.returncode == 1
    assert "1 messages are larger than the 1000 bytes" in refused.stderr
    assert "--max-msg-size=1001" in refused.stderr
    assert not small.http("/stats?format=json")["topics"]


def test_a_folder_without_messages_an_address_without_an_nsqd_and_a_wrong_flag_are_one_sentence(
    ours: Server, nsqd: Server, tmp_path: Path
) -> None:
    none = drain(tmp_path / "none", nsqd)
    assert (none.returncode, none.stderr.count("\n")) == (1, 1)
    assert not (tmp_path / "none").exists()
    ours.stop()
    nsqd.stop()
    away = drain(ours.data, nsqd)
    assert (away.returncode, away.stderr.count("\n")) == (1, 1)
    for flag in ("--drain-to=nowhere", "--drain-to=nsq://a,b", "--drain-to=beanstalk://a", "--drain-all-channels"):
        wrong = subprocess.run(
            [sys.executable, "-m", "framework.nsqd", flag], capture_output=True, text=True, timeout=60, check=False
        )
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1), flag
