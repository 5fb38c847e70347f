"""docs/how-to.md: the answers about running workers, each done on a real nsqd as it stands there."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from framework import Publisher
from framework.admin.figures import Figures
from framework.testing.servers import ROOT, Server
from framework.testing.workers import Worker, call
from tests.house.pages import Block, blocks

pytestmark = [pytest.mark.real, pytest.mark.slow]

SHOP = """
import os
from framework import handler

VERSION = {version}

@handler("orders", "billing", concurrency=4)
def bill(order: str) -> None:
    os.write(1, f"got {{order}} {{os.getpid()}} {{VERSION}}\\n".encode())
"""


def of(test: str) -> list[Block]:
    found = [block for block in blocks(ROOT / "docs" / "how-to.md") if block.run_by.endswith(f"::{test}")]
    assert found
    return found


def commands(block: Block, nsqd: Server | None = None) -> list[list[str]]:
    text = block.text if nsqd is None else block.text.replace("127.0.0.1:4150", f"{nsqd.address}?http_port={nsqd.http_port}")
    return [shlex.split(line[2:]) for line in text.splitlines() if line.startswith("$ ")]


@contextmanager
def working(arguments: list[str], folder: Path, ready: str) -> Iterator[Worker]:
    worker = Worker(*arguments, cwd=folder)
    try:
        worker.wait_for(ready, deadline=60)
        yield worker
    finally:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.wait()


def got(worker: Worker) -> list[list[str]]:
    """Order, process and version of each call."""
    return [line.split()[1:] for line in list(worker.out) if line.startswith("got ")]


def test_four_processes_share_a_channel(nsqd: Server, tmp_path: Path) -> None:
    [block] = of("test_four_processes_share_a_channel")
    [words] = commands(block, nsqd)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "handlers.py").write_text(SHOP.format(version=1))
    with working(words[1:], tmp_path, "all 4 processes are ready") as worker:
        publisher = Publisher(f"nsq://{nsqd.address}")
        for start in range(0, 400, 4):
            publisher.publish_many("orders", [str(number) for number in range(start, start + 4)])
        worker.wait_until(lambda: len(got(worker)) == 400)
        assert sorted(int(order) for order, _, _ in got(worker)) == list(range(400))
        assert len({pid for _, pid, _ in got(worker)}) > 1
        assert len(nsqd.channel_stats("orders", "billing")["clients"]) == 4
        assert worker.stop() == 0
        publisher.close()


def test_a_rollout_under_load_loses_nothing(nsqd: Server, tmp_path: Path) -> None:
    [block] = of("test_a_rollout_under_load_loses_nothing")
    for version in (1, 2):
        folder = tmp_path / "releases" / str(version)
        folder.mkdir(parents=True)
        (folder / "shop.py").write_text(SHOP.format(version=version))
    current, pid = tmp_path / "current", tmp_path / "shop.pid"
    current.symlink_to(tmp_path / "releases" / "1")
    flags = ["run", "shop", "--broker", f"nsq://{nsqd.address}?http_port={nsqd.http_port}", "--processes", "2"]
    start = f"cd {current} && exec {sys.executable} -m framework.cli {shlex.join(flags)} > {tmp_path}/out 2> {tmp_path}/err"
    master = subprocess.Popen(["sh", "-c", start])
    pid.write_text(str(master.pid))

    def wait_for(file: str, text: str) -> None:
        assert _within(60, lambda: text in (tmp_path / file).read_text()), (tmp_path / "err").read_text()

    over = threading.Event()
    try:
        assert _within(20, (tmp_path / "err").exists)
        wait_for("err", "all 2 processes are ready")
        sent: list[int] = []

        def publish() -> None:
            publisher = Publisher(f"nsq://{nsqd.address}")
            while not over.wait(0.01):
                publisher.publish("orders", str(len(sent)))
                sent.append(len(sent))
            publisher.close()

        thread = threading.Thread(target=publish)
        thread.start()
        text = block.text.replace("/srv/shop", str(tmp_path)).replace("/run/shop.pid", str(pid))
        for line in text.splitlines():
            subprocess.run(["sh", "-c", line.removeprefix("$ ")], check=True, timeout=60)
        wait_for("err", "reloaded: all 2 processes")
        over.set()
        thread.join()
        assert _within(60, lambda: len((tmp_path / "out").read_text().splitlines()) >= len(sent))
    finally:
        over.set()
        master.send_signal(signal.SIGTERM)
        assert master.wait(60) == 0
    calls = [line.split() for line in (tmp_path / "out").read_text().splitlines()]
    assert Counter(int(one[1]) for one in calls) == dict.fromkeys(sent, 1)
    assert {one[3] for one in calls} <= {"1", "2"}
    assert "2" in {one[3] for one in calls}


def _within(seconds: float, condition: object) -> bool:

    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_a_channel_that_lags_is_told_by_an_exit_code(nsqd: Server, tmp_path: Path) -> None:
    [block] = of("test_a_channel_that_lags_is_told_by_an_exit_code")
    broker = f"{nsqd.address}?http_port={nsqd.http_port}"
    line = block.text.strip().removeprefix("$ ").replace("127.0.0.1:4150", f"'{broker}'").replace("10000", "3")
    line = line.replace("workers ", f"{sys.executable} -m framework.cli ", 1)
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http("/channel/create?topic=orders&channel=billing", b"")
    for count, said in ((3, False), (1, True)):
        nsqd.http("/mpub?topic=orders", b"\n".join([b"x"] * count))
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        assert ("orders lag" in done.stdout) is said, done.stdout + done.stderr


def test_the_rules_for_prometheus_name_metrics_that_there_are() -> None:
    [block] = of("test_the_rules_for_prometheus_name_metrics_that_there_are")
    [group] = yaml.safe_load(block.text)["groups"]
    source = Path(sys.modules[Figures.__module__].__file__ or "").read_text()
    named = {name for rule in group["rules"] for name in re.findall(r"messaging_(\w+)", rule["expr"])}
    assert len(named) == 3
    assert {name for name in named if name.removesuffix("_total") not in source} == set()


def test_a_replay_reaches_one_channel_of_several(nsqd: Server, tmp_path: Path) -> None:
    code, replay = of("test_a_replay_reaches_one_channel_of_several")
    head = "from framework import Reject, handler\nimport os\n"
    body = "\n    if not os.path.exists('mended'): raise Reject('no card')\n    print('charged', order['id'], flush=True)\n"
    (tmp_path / "shop.py").write_text(head + code.text.replace(" ...\n", body))
    for channel in ("billing", "mails"):
        nsqd.http("/topic/create?topic=orders", b"")
        nsqd.http(f"/channel/create?topic=orders&channel={channel}", b"")
    url = f"nsq://{nsqd.address}?http_port={nsqd.http_port}"
    with working(["run", "shop", "--broker", url], tmp_path, "ready") as worker:
        nsqd.http("/pub?topic=orders", b'{"id": 7}')
        worker.wait_for("dead letter in topic orders.billing.dead")
        (tmp_path / "mended").touch()
        [words] = commands(replay, nsqd)
        done = call(*words[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        worker.wait_for("charged 7")
        assert worker.stop() == 0
    assert nsqd.channel_stats("orders", "mails")["depth"] == 1, "it got the message once"
