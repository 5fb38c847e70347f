"""OK means that it survives: kills at random moments under publishers and a consumer, a full disk, and hard tails."""

from __future__ import annotations

import os
import random
import resource
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from framework.testing.servers import Server, ServerMissing, own_nsqd, running
from tests.conftest import missing
from tests.disks import Disk, tmpfs
from tests.nsqd.conftest import logged
from tests.nsqd.speaking import sized

KILLS = int(os.environ.get("NSQD_KILLS", "10"))
"""20 and more are for the evening before a release: NSQD_KILLS=20."""
LATE_ROUNDS = int(os.environ.get("NSQD_LATE_ROUNDS", "3"))
PUBLISHERS = 4


def mpub(topic: bytes, bodies: list[bytes]) -> bytes:
    content = struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))
    return b"MPUB " + topic + b"\n" + sized(content)


class Worker(threading.Thread):
    """Goes on through kills until it is told to stop; every error that is not a lost connection fails the test."""

    def __init__(self, server: Server, talk: Callable[..., Any]) -> None:
        super().__init__(daemon=True)
        self.server, self.talk = server, talk
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                client = self.talk(self.server)
            except OSError:
                time.sleep(0.01)
                continue
            try:
                self.work(client)
            except BaseException as error:
                self.error = error
                raise
            finally:
                client.close()

    def work(self, client: Any) -> None:
        raise NotImplementedError


class Publisher(Worker):
    """Publishes numbered bodies, alone and in bunches; counts one only when its OK has come."""

    def __init__(self, server: Server, talk: Callable[..., Any], number: int) -> None:
        super().__init__(server, talk)
        self.number = number
        self.at = 0
        self.confirmed: set[bytes] = set()

    def work(self, client: Any) -> None:
        while not self.stopping.is_set() and not client.closed:
            count = random.choice([1, 1, 1, 20, 200])
            bodies = [b"%d:%d" % (self.number, self.at + one) for one in range(count)]
            self.at += count
            before = len(client.replies)
            client.send(b"PUB kills\n" + sized(bodies[0]) if count == 1 else mpub(b"kills", bodies))
            if client.until(lambda before=before: len(client.replies) > before, 30):
                assert client.replies[-1] == b"OK"
                self.confirmed.update(bodies)
            client.forget()


class Consumer(Worker):
    """Finishes most, requeues some; what it has finished once it must not need again, but may get."""

    def __init__(self, server: Server, talk: Callable[..., Any]) -> None:
        super().__init__(server, talk)
        self.seen: set[bytes] = set()

    def work(self, client: Any) -> None:
        client.send(b"SUB kills c\nRDY 200\n")
        while not self.stopping.is_set() and not client.closed:
            client.read(0.05)
            answers = []
            for message_id, _, body in client.messages:
                if random.random() < 0.1:
                    answers.append(b"REQ " + message_id + b" %d\n" % random.choice([0, 20]))
                else:
                    answers.append(b"FIN " + message_id + b"\n")
                    self.seen.add(body)
            assert not [reply for reply in client.replies if reply != b"OK"]
            client.forget()
            client.send(b"".join(answers))


@pytest.mark.slow
def test_kills_at_random_moments_lose_no_confirmed_message(ours: Server, talk: Callable[..., Any]) -> None:
    publishers = [Publisher(ours, talk, number) for number in range(PUBLISHERS)]
    consumer = Consumer(ours, talk)
    for worker in (*publishers, consumer):
        worker.start()
    for _ in range(KILLS):
        time.sleep(random.uniform(0.1, 0.6))
        ours.kill()
        ours.start()
    for worker in publishers:
        worker.stopping.set()
        worker.join(40)
    confirmed = set().union(*[one.confirmed for one in publishers])
    deadline = time.monotonic() + 60
    while not confirmed <= consumer.seen and time.monotonic() < deadline and consumer.is_alive():
        time.sleep(0.05)
    consumer.stopping.set()
    consumer.join(10)
    print(f"{len(confirmed)} confirmed over {KILLS} kills, {len(confirmed - consumer.seen)} lost")
    assert [worker.error for worker in (*publishers, consumer) if worker.error] == []
    assert confirmed <= consumer.seen
    assert len(confirmed) > 100 * KILLS


LATE = 500
"""Messages that wait for a topic's first channel."""


@pytest.mark.parametrize("seconds", [0.1, pytest.param(2.0, marks=pytest.mark.slow)])
def test_a_kill_soon_after_the_first_subscription_loses_nothing_on_a_slow_disk(
    disk: Disk, tmp_path: Path, talk: Callable[..., Any], seconds: float
) -> None:
    """The subscription waits for its sync behind those of publishers, while what waited in the topic goes to its channel."""
    server = disk.under(own_nsqd(tmp_path / "slow"))
    server.start()
    try:
        lost = [late_subscription(server, disk, talk, seconds, at) for at in range(LATE_ROUNDS)]
    finally:
        server.kill()
    print(f"late subscriptions, syncs of {seconds} s: {sum(map(bool, lost))} of {len(lost)} rounds lost messages: {lost}")
    assert lost == [0] * len(lost)


def late_subscription(server: Server, disk: Disk, talk: Callable[..., Any], seconds: float, at: int) -> int:
    """How many of the confirmed messages are lost by a kill while the topic gets its first channel."""
    topic = b"late%d" % at
    disk.sync_takes(0)
    publisher, other, late = talk(server), talk(server), talk(server)
    publisher.send(mpub(topic, [b"%d" % one for one in range(LATE)]))
    assert publisher.reply(1) == [b"OK"]
    disk.sync_takes(seconds)
    other.send(b"PUB other\n" + sized(b"x"))  # its sync is under way
    time.sleep(0.02)
    late.send(b"SUB " + topic + b" c\nRDY 100\n")
    time.sleep(random.uniform(0.06, 0.9 * seconds))
    server.kill()
    disk.sync_takes(0)
    server.start()
    late.close()
    late = talk(server)
    late.send(b"SUB " + topic + b" c\nRDY %d\n" % LATE)
    late.until(lambda: len({body for _, _, body in late.messages}) == LATE, 3)
    late.send(b"".join(b"FIN " + one + b"\n" for one, _, _ in late.messages))
    return LATE - len({body for _, _, body in late.messages})


def test_few_finished_messages_come_back_after_a_kill(ours: Server, talk: Callable[..., Any]) -> None:
    """Those of the last 50 ms may; those before must not."""
    client = talk(ours)
    client.send(b"SUB back c\nRDY 2500\n" + mpub(b"back", [b"%d" % at for at in range(1000)]))
    ids = [message_id for message_id, _, _ in client.get(1000)]
    client.send(b"".join(b"FIN " + one + b"\n" for one in ids[:900]) + b"NOP\n")
    deadline = time.monotonic() + 10
    while ours.channel_stats("back", "c")["in_flight_count"] != 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    ours.kill()
    ours.start()
    assert ours.channel_stats("back", "c")["depth"] == 100


def well(server: Server, seconds: float = 10.0) -> bool:
    """Whether /ping says OK, or soon does."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(HTTPError):
            if server.http("/ping") == "OK":
                return True
        time.sleep(0.05)
    return False


def test_a_full_disk_refuses_publishes_but_not_consumers_and_recovers(ours: Server, talk: Callable[..., Any]) -> None:
    """A limit on the size of files stands in for the full disk: the write ends half way, as with ENOSPC."""
    assert ours.process is not None
    consumer, publisher = talk(ours), talk(ours)
    consumer.send(b"SUB full c\nRDY 1\n" + mpub(b"full", [b"1", b"2"]))
    ((first, _, _),) = consumer.get(1)
    _, hard = resource.prlimit(ours.process.pid, resource.RLIMIT_FSIZE)
    log = ours.data / "log" / "0000000001.log"
    resource.prlimit(ours.process.pid, resource.RLIMIT_FSIZE, (log.stat().st_size + 1000, hard))
    size = log.stat().st_size
    publisher.send(b"PUB full\n" + sized(b"x" * 5000))
    assert publisher.until(lambda: publisher.closed)
    assert publisher.replies[0].startswith(b"E_PUB_FAILED PUB failed ")
    assert log.stat().st_size == size
    with pytest.raises(Exception, match="503"):
        ours.http("/pub?topic=full", b"x" * 5000)
    with pytest.raises(Exception, match="500"):
        ours.http("/ping")
    consumer.send(b"FIN " + first + b"\n")
    assert consumer.get(2)[1][2] == b"2"
    resource.prlimit(ours.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
    assert ours.http("/pub?topic=full", b"3") == "OK"
    assert well(ours)  # once the states are saved, which failed too
    consumer.send(b"FIN " + consumer.messages[1][0] + b"\n")
    assert consumer.get(3)[2][2] == b"3"
    assert logged(ours, "DISK: nothing was published")
    assert not any("Traceback" in line for line in ours.log)


def test_a_torn_tail_is_reported_and_all_before_it_served(ours: Server, talk: Callable[..., Any]) -> None:
    ours.http("/pub?topic=torn", b"whole")
    ours.kill()
    with (ours.data / "log" / "0000000001.log").open("ab") as log:
        log.write(b"\xa9NQ1 half a record")
    ours.start()
    assert logged(ours, "never confirmed: cut off")
    client = talk(ours)
    client.send(b"SUB torn c\nRDY 10\nPUB torn\n" + sized(b"next"))
    assert [body for _, _, body in client.get(2)] == [b"whole", b"next"]


def test_a_damaged_record_is_reported_and_all_others_served(ours: Server, talk: Callable[..., Any]) -> None:
    for at in range(3):
        ours.http("/pub?topic=flip", b"%d" % at * 50)
    assert ours.stop() == 0
    path = ours.data / "log" / "0000000001.log"
    data = bytearray(path.read_bytes())
    data[data.find(b"1" * 50) + 7] ^= 4
    path.write_bytes(data)
    ours.start()
    client = talk(ours)
    client.send(b"SUB flip c\nRDY 10\n")
    assert [body for _, _, body in client.get(2)] == [b"0" * 50, b"2" * 50]
    assert logged(ours, "are damaged: 1 messages lost")
    assert list((ours.data / "bad").iterdir())


def test_a_lost_index_costs_redeliveries_and_no_message(ours: Server, talk: Callable[..., Any]) -> None:
    client = talk(ours)
    client.send(b"SUB index c\n" + mpub(b"index", [b"%d" % at for at in range(100)]))
    client.reply(2)
    ours.kill()
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (ours.data / name).unlink(missing_ok=True)
    ours.start()
    again = talk(ours)
    again.send(b"SUB index c\nRDY 100\n")
    assert [int(body) for _, _, body in again.get(100)] == list(range(100))


def test_a_copy_of_a_running_folder_can_be_served(ours: Server, talk: Callable[..., Any], tmp_path: Path) -> None:
    """What a snapshot of the disk holds is enough."""
    ours.http("/mpub?topic=copy", b"a\nb")
    shutil.copytree(ours.data, tmp_path / "copy")
    ours.kill()
    shutil.rmtree(ours.data)
    os.rename(tmp_path / "copy", ours.data)
    ours.start()
    client = talk(ours)
    client.send(b"SUB copy c\nRDY 10\n")
    assert [body for _, _, body in client.get(2)] == [b"a", b"b"]


@pytest.fixture(params=["a small tmpfs", "writes that are refused"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Callable[[bool], None], bool]]:
    """An nsqd; what takes the last byte from its disk, or gives it back; whether what it deletes then gives it room."""
    folder = tmp_path / "small"
    if request.param == "writes that are refused":
        disk = request.getfixturevalue("disk")
        server = disk.under(own_nsqd(folder))
        server.start()
        yield server, disk.is_full, False
        server.kill()
        return
    try:
        with tmpfs(folder, 4 << 20), running(own_nsqd(folder / "data")) as server:
            yield server, lambda full: take(folder / "other", full), True
    except ServerMissing as error:
        missing(str(error))


def take(path: Path, everything: bool) -> None:
    """Let another program's file have all that is left of the disk, or nothing."""
    if not everything:
        path.unlink()
        return
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


def test_a_topic_gets_its_first_channel_on_a_full_disk_and_loses_nothing(
    small_disk: tuple[Server, Callable[[bool], None], bool], talk: Callable[..., Any]
) -> None:
    server, fill, reserve = small_disk
    publisher = talk(server)
    publisher.send(mpub(b"first", [b"%d" % at for at in range(1000)]) + mpub(b"watched", [b"%d" % at for at in range(100)]))
    assert publisher.reply(2) == [b"OK", b"OK"]
    server.http("/topic/create?topic=pad", b"")
    size = (server.data / "log" / "0000000001.log").stat().st_size
    server.http("/pub?topic=pad", bytes(4096 + (-size - 60) % 4096))  # its block is full too
    time.sleep(0.2)  # their places are saved: what is not could not be read
    fill(True)
    publisher.send(b"PUB first\n" + sized(b"x" * 100_000))
    assert publisher.until(lambda: publisher.closed)
    assert publisher.replies[-1].startswith(b"E_PUB_FAILED")
    watcher, consumer = talk(server), talk(server)
    watcher.send(b"SUB watched c#ephemeral\nRDY 1000\n")
    assert len(watcher.get(100)) == 100
    consumer.send(b"SUB first c\nRDY 1\n")
    assert consumer.reply(1)[0].startswith(b"OK" if reserve else b"E_SUB_FAILED")
    time.sleep(1.3)  # a sweep
    server.kill()
    fill(False)
    server.start()
    again = talk(server)
    again.send(b"SUB first c\nRDY 1000\n")
    assert len({body for _, _, body in again.get(1000)}) == 1000


def test_what_cannot_be_stored_is_refused_in_its_own_name(disk: Disk, tmp_path: Path, talk: Callable[..., Any]) -> None:
    """Also where another command came with it, and both would have been stored together."""
    server = disk.under(own_nsqd(tmp_path / "full"))
    server.start()
    try:
        server.http("/pub?topic=t", b"1")
        disk.is_full()
        pub, dpub, mpubs = b"PUB t\n" + sized(b"x"), b"DPUB t 0\n" + sized(b"x"), mpub(b"t", [b"x"])
        for both, code in ((pub + dpub, b"E_PUB_"), (dpub + mpubs, b"E_DPUB_"), (mpubs + pub, b"E_MPUB_")):
            client = talk(server)
            client.send(both)
            assert client.until(lambda client=client: client.closed)  # type: ignore[misc]
            (answer,) = client.replies
            assert answer.startswith(code + b"FAILED")
        assert not any("Traceback" in line for line in server.log)
    finally:
        server.kill()


def test_three_hundred_subscriptions_on_a_disk_without_a_byte_queue_one_declaration(
    disk: Disk, tmp_path: Path, talk: Callable[..., Any]
) -> None:
    server = disk.under(own_nsqd(tmp_path / "full"))
    server.start()
    try:
        server.http("/pub?topic=tries", b"1")
        time.sleep(0.2)
        disk.is_full()
        assert [tried(server, talk, 5) for _ in range(300)].count(b"OK") == 0
        disk.is_full(False)
        assert tried(server, talk, 10) == b"OK"
        log = (server.data / "log" / "0000000001.log").read_bytes()
        assert log.count(b'"name":"tries"') <= 4
    finally:
        server.kill()


def tried(server: Server, talk: Callable[..., Any], seconds: float) -> bytes:
    """What a subscription is answered."""
    client = talk(server)
    client.send(b"SUB tries c\n")
    (answer,) = client.reply(1, seconds)
    client.close()
    return bytes(answer)
