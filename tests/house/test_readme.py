"""The commands of the README are run here as they stand, and do what the README says. `make test` is run by
test_second_try.py, in a project of its own, and `pip install .` by test_wheel.py."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from framework.testing.servers import ROOT, Server, free_port

README = (ROOT / "README.md").read_text()
COMMANDS = [line.removeprefix("$ ") for block in re.findall(r"```console\n(.*?)```", README, re.S) for line in block.splitlines()]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A newcomer's shell with the virtual environment active; ports and folders of its own."""
    return os.environ | {
        "PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "WORKERS_DATA_PATH": str(tmp_path / "nsqd"),
        "WORKERS_NSQD_TCP_ADDRESS": f"127.0.0.1:{free_port()}",
        "WORKERS_NSQD_HTTP_ADDRESS": f"127.0.0.1:{free_port()}",
        "OUTPUT": str(tmp_path / "demo"),
    }


@contextmanager
def in_background(command: str, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(f"exec {command}", shell=True, cwd=ROOT, env=environment, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(text: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def stops_cleanly(process: subprocess.Popen[bytes]) -> bool:
    process.send_signal(signal.SIGTERM)
    return process.wait(30) == 0


def test_no_command_of_the_readme_is_left_out() -> None:
    assert COMMANDS == [
        "make demo",
        "make test",
        "pip install .",
        "workers run examples.hello",
        "echo world | workers publish greetings",
        "workers check examples.hello --broker nsq://127.0.0.1:4150",
        "workers run examples.hello --broker nsq+lookupd://127.0.0.1:4161",
    ]


def test_its_example_is_the_file_it_names() -> None:
    code = re.search(r"```python\n(.*?)```", README, re.S)
    assert code is not None
    assert code[1].strip() in (ROOT / "examples" / "hello.py").read_text()


def test_its_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_a_worker_greets_who_is_published(environment: dict[str, str], tmp_path: Path) -> None:
    run, publish = COMMANDS[3:5]
    log = tmp_path / "log"
    with in_background(run, environment, log) as worker:
        wait_for("ready", log, worker)
        published = subprocess.run(publish, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        assert "published 1 of 1" in published.stdout + published.stderr
        wait_for("hello, world", log, worker)
        assert stops_cleanly(worker)


@pytest.mark.real
def test_check_says_if_it_would_run(environment: dict[str, str], nsqd: Server) -> None:
    command = COMMANDS[5].replace("127.0.0.1:4150", nsqd.address)
    checked = subprocess.run(command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.real
def test_the_same_file_runs_on_a_cluster(
    environment: dict[str, str],
    tmp_path: Path,
    start_nsqlookupd: Callable[..., Server],
    start_nsqd: Callable[..., Server],
) -> None:
    lookupd = start_nsqlookupd()
    node = start_nsqd(f"--lookupd-tcp-address={lookupd.address}")
    node.http("/pub?topic=greetings", b"cluster")
    log = tmp_path / "log"
    with in_background(COMMANDS[6].replace("127.0.0.1:4161", lookupd.http_address), environment, log) as worker:
        wait_for("hello, cluster", log, worker)
        assert stops_cleanly(worker)


@pytest.mark.long_run
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_make_demo_reports_the_shipped_log_exactly(environment: dict[str, str]) -> None:
    done = subprocess.run(COMMANDS[0], shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    summary = json.loads((Path(environment["OUTPUT"]) / "summary.json").read_text())
    assert (summary["input_lines"], summary["published"], summary["archived"], summary["rejected"], summary["addresses"]) == (
        16_275, 16_275, 10_479, 5_796, 917,
    )  # fmt: skip
    days = [(day["requests"], day["addresses"]) for _, day in sorted(summary["by_day"].items())]
    assert days == [
        (938, 81), (1361, 142), (1407, 346), (1145, 88), (1770, 118), (1026, 97), (1004, 100), (1068, 131), (760, 86),
    ]  # fmt: skip
    assert summary["by_status"] == {"200": 9472, "404": 758, "499": 120, "301": 76, "302": 29, "400": 24}
    suspects = {one["address"] for one in summary["spam"]}
    assert "152.91.93.52" in suspects
    assert "148.87.179.6" not in suspects
    assert summary["ledger"]["spam_suspects/blocklist"]["finished"] == len(suspects)
    assert all(ends["received"] == ends["finished"] + ends["requeued"] for ends in summary["ledger"].values())
    for name in ("growth.png", "spam.png", "report.html", "archive", "rejected", "growth", "spam"):
        assert (Path(environment["OUTPUT"]) / name).exists()


def test_make_test_is_what_ci_runs() -> None:
    listed = subprocess.run(["make", "-n", *COMMANDS[1].split()[1:]], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "tools/test" in listed.stdout
    assert f"exec {COMMANDS[1]}" in (ROOT / ".ci" / "run").read_text()
