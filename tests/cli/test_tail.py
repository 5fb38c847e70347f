"""``workers tail``: shows a topic's messages, takes none from others, and loses none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from framework.testing.servers import Server
from framework.testing.workers import Worker, call, command, environment

pytestmark = pytest.mark.real


def arguments(nsqd: Server, *more: str) -> list[str]:
    return ["tail", "news", "--broker", f"nsq://{nsqd.address}?http_port={nsqd.http_port}", *more]


def put(nsqd: Server, *bodies: str) -> None:
    nsqd.http("/mpub?topic=news", "\n".join(bodies).encode())


def channels(nsqd: Server) -> list[str]:
    return [
        channel["channel_name"]
        for topic in nsqd.http("/stats?format=json&topic=news")["topics"] or []
        for channel in topic["channels"]
    ]


@pytest.fixture
def channel(nsqd: Server) -> None:
    """The channel ``archive`` of the topic ``news``."""
    nsqd.http("/topic/create?topic=news", b"")
    nsqd.http("/channel/create?topic=news&channel=archive", b"")


@pytest.mark.usefixtures("channel")
def test_it_prints_what_comes_and_takes_nothing_from_other_channels(nsqd: Server, tmp_path: Path) -> None:
    worker = Worker(*arguments(nsqd), cwd=tmp_path)
    try:
        worker.wait_until(lambda: len(channels(nsqd)) == 2)
        put(nsqd, "one", "two", "three")
        worker.wait_until(lambda: len(worker.out) == 3)
        assert worker.stop() == 0
    finally:
        worker.process.kill()
    assert sorted(worker.out) == ["one", "three", "two"]
    assert nsqd.channel_stats("news", "archive")["depth"] == 3
    worker.wait_until(lambda: channels(nsqd) == ["archive"])


@pytest.mark.usefixtures("channel")
def test_it_stops_after_n_messages(nsqd: Server, tmp_path: Path) -> None:
    worker = Worker(*arguments(nsqd, "-n", "2"), cwd=tmp_path)
    try:
        worker.wait_until(lambda: len(channels(nsqd)) == 2)
        put(nsqd, *map(str, range(50)))
        assert worker.wait() == 0
    finally:
        worker.process.kill()
    assert len(worker.out) == 2
    assert nsqd.channel_stats("news", "archive")["depth"] == 50


def test_a_topic_without_a_channel_is_refused_and_keeps_its_messages(nsqd: Server, tmp_path: Path) -> None:
    put(nsqd, "one", "two")
    done = call(*arguments(nsqd, "-n", "1"), cwd=tmp_path)
    assert done.returncode == 2
    assert "topic 'news' has no channel yet" in done.stderr
    assert channels(nsqd) == []
    assert nsqd.http("/stats?format=json&topic=news")["topics"][0]["depth"] == 2


def test_a_server_whose_http_api_is_silent_is_not_trusted(nsqd: Server, tmp_path: Path) -> None:
    put(nsqd, "one")
    done = call("tail", "news", "--broker", f"nsq://{nsqd.address}?http_port=1", cwd=tmp_path)
    assert done.returncode == 2
    assert "it cannot be told whether topic 'news' has a channel" in done.stderr
    assert channels(nsqd) == []


def test_a_named_channel_is_read_and_kept(nsqd: Server, tmp_path: Path) -> None:
    put(nsqd, "one", "two", "three")
    done = call(*arguments(nsqd, "-n", "1", "--channel", "look"), cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout in {"one\n", "two\n", "three\n"}
    stats = nsqd.channel_stats("news", "look")
    assert stats["depth"] + stats["deferred_count"] == 2
    assert stats["in_flight_count"] == 0


@pytest.mark.usefixtures("channel")
def test_it_ends_quietly_when_nobody_reads_its_output(nsqd: Server, tmp_path: Path) -> None:
    with subprocess.Popen(
        command(*arguments(nsqd, "--channel", "archive")),
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        put(nsqd, "one", "two")
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        put(nsqd, *map(str, range(20)))
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "Error" not in process.stderr.read()


@pytest.mark.parametrize(
    ("more", "words"), [(["-n", "0"], "0 is not in the range"), (["--channel", "a b"], "channel name 'a b'")]
)
def test_wrong_use_is_exit_2(more: list[str], words: str, nsqd: Server, tmp_path: Path) -> None:
    done = call(*arguments(nsqd, *more), cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
