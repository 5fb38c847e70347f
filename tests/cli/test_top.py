"""``workers top``: once as text, and live in a terminal of its own, against one worker and several."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.testing.workers import call, command, environment
from tests.admin.asking import port_of, run


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    with run(folders[0], "memory://top") as one, run(folders[1], "memory://top") as two:
        yield port_of(one), port_of(two)


def test_without_a_terminal_it_is_shown_once_and_several_workers_are_added_up(ports: tuple[int, int], tmp_path: Path) -> None:
    done = call("top", *map(str, ports), "127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("2 of 2 processes ready   1 handlers")
    assert lines[1].startswith("no worker answers at 127.0.0.1:1")
    [row] = [line for line in lines if line.startswith("orders/bill")]
    assert "0/4" in row, "two slots in each of two processes"
    assert row.endswith("ok")


def test_where_no_worker_answers_it_fails(tmp_path: Path) -> None:
    done = call("top", "127.0.0.1:1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "name a worker, as `workers top 9464`" in call("top", cwd=tmp_path).stderr
    assert "'nowhere' is not an address" in call("top", "nowhere", cwd=tmp_path).stderr


def test_in_a_terminal_it_is_live_until_q_and_leaves_the_terminal_as_it_was(ports: tuple[int, int], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("top", str(ports[0]), "--every", "0.2"), stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path,
        env=environment({"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}), start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    until = time.monotonic() + 30
    try:
        while said.count(b"orders/bill") < 3:  # drawn again and again
            assert time.monotonic() < until, said
            if select.select([ours], [], [], 1)[0]:
                said += os.read(ours, 65536)
        os.write(ours, b"s")
        while b"sorted by backlog" not in said:
            assert time.monotonic() < until, said
            if select.select([ours], [], [], 1)[0]:
                said += os.read(ours, 65536)
        os.write(ours, b"q")
        assert process.wait(10) == 0
        while select.select([ours], [], [], 0)[0]:
            try:
                said += os.read(ours, 65536)
            except OSError:
                break
        assert b"\x1b[?1049l" in said, "the screen that was there before is back"
        assert b"Traceback" not in said
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
