"""``workers ctl`` against workers that run: each verb does what it says, and what cannot be done is one sentence."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from framework.cli.root import run_command
from framework.cli.tables import seconds, state, table
from framework.testing.servers import ROOT, Server
from framework.testing.workers import call
from tests.admin.asking import SHOP, port_of, run, shown
from tests.otel.collector import no_good

BILL = "orders/bill"
MORE = '\n    @handler("idle", "here")\n    def rest(message: Message): ...\n'


class Ctl:
    def __init__(self, where: str, folder: Path, env: dict[str, str] | None = None) -> None:
        self.where, self.folder, self.env = where, folder, env

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """In this process: a new one takes a second. Its words on stderr where it fails."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            for name, value in (self.env or {}).items():
                patch.setenv(name, value)
            assert run_command(["ctl", *arguments, "--admin", self.where]) == code, (out.getvalue(), err.getvalue())
        return err.getvalue() if code else out.getvalue()

    def rows(self, part: str, *more: str) -> Any:
        return [json.loads(line) for line in self(part, "--json", *more).splitlines()]


@pytest.fixture(scope="module")
def ctl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ctl]:
    folder = tmp_path_factory.mktemp("ctl")
    with run(folder, "memory://ctl", shop=SHOP + MORE) as worker:
        yield Ctl(f"127.0.0.1:{port_of(worker)}", folder)


def test_a_handler_is_paused_and_the_others_are_not_until_it_is_resumed(ctl: Ctl) -> None:
    assert ctl("pause", BILL) == f"paused {BILL}\n"
    assert {row["handler"]: row["pause"] and row["pause"]["by"] for row in ctl.rows("handlers")} == {
        BILL: "operator", "idle/here": None
    }  # fmt: skip
    assert "paused" in ctl("handlers", BILL)
    assert ctl("resume", "--all") == "resumed all handlers\n"
    assert ctl("drain", BILL, "idle/here") == f"drained {BILL}\ndrained idle/here\n"
    assert [row["pause"]["by"] for row in ctl.rows("handlers")] == ["drain"] * 2
    ctl("resume", "--all")
    assert [row["pause"] for row in ctl.rows("handlers")] == [None] * 2


def test_numbers_are_changed(ctl: Ctl) -> None:
    assert ctl("max-in-flight", BILL, "77") == f"max_in_flight of {BILL} is now 77\n"
    assert ctl("concurrency", BILL, "7") == f"concurrency of {BILL} is now 7\n"
    [row] = ctl.rows("handlers", BILL)
    assert (row["max_in_flight"], row["concurrency"]) == (77, 7)


def test_what_the_page_shows_works(ctl: Ctl) -> None:
    page = (ROOT / "docs" / "admin.md").read_text().replace("orders/billing", BILL)
    lines = re.findall(r"^\$ workers ctl (.*?) --admin 9464", page, re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        ctl(*line.split())
    ctl("resume", "--all")


@pytest.mark.parametrize(("arguments", "words"), [
    (["pause"], "pause: name handlers, as orders/billing, or say --all"),
    (["pause", BILL, "--all"], "pause: name handlers"),
    (["pause", "orders/none"], "there is no handler 'orders/none' here: name one of idle/here, orders/bill"),
    (["concurrency", BILL, "0"], "concurrency=0 is not a whole number of calls from 1 to 100000; to have none, pause it"),
    (["concurrency", BILL, "9999"], "can never be reached with max_in_flight="),
    (["concurrency", BILL, "many"], "'many' is not a valid integer"),
])  # fmt: skip
def test_what_cannot_be_done_is_a_sentence(ctl: Ctl, arguments: list[str], words: str) -> None:
    assert words in ctl(*arguments, code=2)


def test_a_worker_that_is_not_there_and_one_that_was_not_named(tmp_path: Path) -> None:
    words = Ctl("127.0.0.1:1", tmp_path)("handlers", code=3)
    assert words == "workers: no worker answers at 127.0.0.1:1 (Connection refused): was it started with --admin?\n"
    assert "no worker answers at" in Ctl(str(tmp_path / "no.sock"), tmp_path)("handlers", code=3)
    done = call("ctl", "handlers", cwd=tmp_path)
    assert (done.returncode, "name the worker, as `--admin 9464`" in done.stderr) == (2, True)


@pytest.mark.real
def test_a_server_of_another_kind_is_named_as_such(nsqd: Server, tmp_path: Path) -> None:
    words = Ctl(nsqd.http_address, tmp_path)("handlers", code=3)
    assert words == f"workers: what answers at {nsqd.http_address} is no worker (HTTP status 404): is it another port?\n"


@pytest.mark.parametrize("kind", ["endless", "drips", "garbage"])
def test_a_server_whose_answers_have_no_end_or_no_sense_is_named_at_once(kind: str, tmp_path: Path) -> None:
    with no_good(kind) as port:
        began = time.monotonic()
        for verb in ("handlers", "dead", "pause --all"):
            words = Ctl(f"127.0.0.1:{port}", tmp_path)(*verb.split(), code=3)
            assert words.startswith("workers: ")
            assert ": is it another port?" in words or "no worker answers" in words
            assert "\x1b" not in words
    assert time.monotonic() - began < 30


@pytest.mark.real
def test_what_a_blocked_hub_has_yet_to_do_is_said(nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, f"nsq://{nsqd.address}") as worker:
        ctl = Ctl(f"127.0.0.1:{port_of(worker)}", tmp_path)
        nsqd.http("/pub?topic=orders", b"hang")
        while "bill" not in ctl("running"):
            time.sleep(0.1)
        assert ctl("pause", BILL) == f"paused {BILL}; not yet: its hub is blocked, and heeds it when it turns\n"
        worker.process.kill()


def test_it_says_the_token_and_goes_by_a_path_too(tmp_path: Path) -> None:
    path, token = str(tmp_path / "a.sock"), {"WORKERS_ADMIN_TOKEN": "a-token-of-the-tests"}
    with run(tmp_path, "memory://path", "--admin", path, env=token) as worker:
        assert "say the token" in Ctl(path, tmp_path)("handlers", code=2)
        wrong = Ctl(path, tmp_path, {"WORKERS_ADMIN_TOKEN": "b-token-of-the-tests"})("pause", "--all", code=2)
        assert "$WORKERS_ADMIN_TOKEN" in wrong
        assert Ctl(path, tmp_path, token)("pause", "--all") == "paused all handlers\n"
        worker.wait_for("admin: the local socket: paused all handlers")
        assert worker.stop() == 0


@pytest.mark.real
def test_what_runs_what_failed_and_the_connections_are_tables(nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, f"nsq://{nsqd.address}") as worker:
        ctl = Ctl(f"127.0.0.1:{port_of(worker)}", tmp_path)
        nsqd.http("/mpub?topic=orders", b"bad\nwait")
        worker.wait_for("failed at attempt 1")
        while "bill" not in (text := ctl("running")):
            pass
        head, line = text.splitlines()
        assert head.split() == ["SINCE", "HANDLER", "ID", "ATTEMPT", "WHERE"]
        assert line.endswith("shop.py:11 in bill")
        assert "ValueError: bad" in ctl("failures", BILL)
        assert nsqd.address in ctl("connections")
        assert "ready" in ctl("processes")
        worker.process.kill()


@pytest.mark.real
def test_dead_letters_are_counted_replayed_and_purged(nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, f"nsq://{nsqd.address}?http_port={nsqd.http_address.rpartition(':')[2]}") as worker:
        port = port_of(worker)
        ctl = Ctl(f"127.0.0.1:{port}", tmp_path)
        nsqd.http("/mpub?topic=orders", b"reject\nreject\nreject")
        shown(port, "dead", lambda rows: isinstance(rows, list) and rows[0]["letters"] == 3)
        assert "3  orders.bill.dead" in ctl("dead", BILL)
        ctl("pause", BILL)
        assert ctl("replay", BILL, "--dry-run") == "would replay 3 letters to orders; 3 kept, 0 failed\n"
        assert ctl("replay", BILL, "--limit", "1") == "replayed 1 letters to orders; 2 kept, 0 failed\n"
        assert 'choose letters, or say "all": true' in ctl("purge", BILL, code=2)
        assert ctl("purge", BILL, "--reason", "no such") == "purged 0 letters; 2 kept\n"
        assert ctl("purge", BILL, "--all") == "purged 2 letters; 0 kept\n"
        worker.process.kill()


def test_seconds_are_short() -> None:
    assert list(map(seconds, (None, 0, 0.0012, 0.25, 3.21, 312, 7500))) == [
        "-",
        "0ms",
        "1.2ms",
        "250ms",
        "3.2s",
        "5m12s",
        "2h05m",
    ]


def test_a_pause_says_why_and_of_how_many_processes() -> None:
    pause = {"by": "backoff", "until": 0.0, "why": "the handler raised Backoff", "processes": 1, "trying": True}
    assert state({"pause": pause, "processes": 2, "connected": 1}) == "trying again: the handler raised Backoff (1 of 2)"
    assert state({"pause": None, "processes": 2, "connected": 0}) == "no connection"


def test_what_an_exception_says_moves_no_cursor() -> None:
    row = {"at": 0.0, "handler": "a/b", "id": "1", "attempt": 1, "became": "dead", "error": "\x1b[2J", "where": ""}
    assert "\x1b" not in "".join(table("failures", [row]))
