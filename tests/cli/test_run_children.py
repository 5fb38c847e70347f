"""Commands that handlers run: in greenlets they run once, in threads not at all."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from framework.testing.servers import Server
from framework.testing.workers import working

pytestmark = pytest.mark.real

SHOP = """
    import os, subprocess
    from framework import handler

    def fork():
        child = os.fork()
        if child == 0:
            open("ran", "a").write("x")
            os._exit(0)
        os.waitpid(child, 0)

    def run():
        assert subprocess.run(["sh", "-c", "printf x >> ran; exit 3"]).returncode == 3

    @handler("orders", "bill", concurrency=1, slots="SLOTS", max_attempts=1)
    def bill(text: str) -> None:
        HOW()
        print("ran", flush=True)
"""


@pytest.mark.parametrize(("how", "slots"), [("run", "greenlet"), ("run", "thread"), ("fork", "thread")])
def test_a_command_runs_once_or_is_refused_before_it_starts(how: str, slots: str, nsqd: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(SHOP).replace("SLOTS", slots).replace("HOW", how))
    nsqd.http("/pub?topic=orders", b"1")
    with working("run", "shop", "--broker", f"nsq://{nsqd.address}", cwd=tmp_path) as worker:
        worker.wait_for("a thread cannot start a process" if slots == "thread" else "ran")
        assert worker.stop() == 0
    ran = tmp_path / "ran"
    assert (ran.read_text() if ran.exists() else "") == ("" if slots == "thread" else "x")
