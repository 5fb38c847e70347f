"""OK means that it survives: kills at random moments under publishers and a consumer, a full disk, and hard tails."""

from __future__ import annotations

import os
import random
import resource
import shutil
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framework.testing.servers import Server
from tests.nsqd.conftest import logged

KILLS = int(os.environ.get("NSQD_KILLS", "10"))
"""20 and more are for the evening before a release: NSQD_KILLS=20."""
PUBLISHERS = 4


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


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
    assert ours.http("/ping") == "OK"
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
