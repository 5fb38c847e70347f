"""The JSON API of a worker: what it says is so, what it is told is done, and who may not ask is told why."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from framework.testing.servers import Server
from framework.testing.workers import call
from tests.admin.asking import api, get, port_of, run, shown

BILL = "orders/bill"
TOKEN = "a-token-of-the-tests"


def put(nsqd: Server, *bodies: str) -> None:
    nsqd.http("/mpub?topic=orders", "\n".join(bodies).encode())


@pytest.mark.real
@pytest.mark.parametrize("slots", ["thread", "process"])
def test_what_runs_is_shown_with_the_line_that_it_is_at(slots: str, nsqd: Server, tmp_path: Path) -> None:
    put(nsqd, "wait", "hang", *["ok"] * 5)
    with run(tmp_path, f"nsq://{nsqd.address}", slots=slots) as worker:
        port = port_of(worker)
        rows = shown(port, "running", lambda rows: len(rows) == 2 and all(row["where"] for row in rows))
        assert {row["handler"] for row in rows} == {BILL}
        assert all(len(row["id"]) == 16 and row["attempt"] == 1 and row["since"] >= 0 for row in rows)
        if slots == "process":
            assert all(row["where"].startswith("in its slot process ") for row in rows)
        else:
            assert {row["where"].rpartition("/")[2] for row in rows} == {"shop.py:11 in bill", "shop.py:13 in bill"}
        worker.process.kill()


@pytest.mark.real
def test_a_call_that_waits_and_one_that_blocks_the_hub_are_shown_where_they_are(nsqd: Server, tmp_path: Path) -> None:
    put(nsqd, "wait")
    with run(tmp_path, f"nsq://{nsqd.address}") as worker:
        port = port_of(worker)
        rows = shown(port, "running", bool)
        assert [row["where"].rpartition("/")[2] for row in rows] == ["shop.py:11 in bill"]
        put(nsqd, "block")
        rows = shown(port, "running", lambda rows: any("shop.py:12 in bill" in row["where"] for row in rows))
        assert api(port, "/api/processes")[1][0]["blocked"] > 0
        worker.process.kill()


@pytest.mark.real
def test_rows_of_handlers_are_the_ledger_s_and_failures_say_what_failed_where(nsqd: Server, tmp_path: Path) -> None:
    put(nsqd, *["ok"] * 100, *["slow"] * 5, "bad", "reject")
    with run(tmp_path, f"nsq://{nsqd.address}") as worker:
        port = port_of(worker)
        [row] = shown(port, "handlers", lambda rows: rows[0]["counts"]["finished"] == 105 and rows[0]["counts"]["dead"] == 1)
        assert (row["handler"], row["concurrency"], row["connected"], row["wanted"]) == (BILL, 2, 1, 1)
        assert row["counts"]["received"] == sum(row["counts"].values()) - row["counts"]["received"] + row["in_flight"]
        assert row["rate"]["finished"] > 0
        assert row["took"]["p99"] > 0.01 > row["took"]["p50"]
        assert row["pause"] is None
        failures = api(port, f"/api/failures?handler={BILL}")[1]
        assert sorted((one["error"], one["became"]) for one in failures) == [
            ("Reject: no", "dead"), ("ValueError: bad", "requeued")
        ]  # fmt: skip
        assert {one["where"].rpartition("/")[2] for one in failures} == {"shop.py:15 in bill", "shop.py:16 in bill"}
        [connection] = api(port, "/api/connections")[1]
        assert (connection["node"], connection["topic"], connection["handler"]) == (nsqd.address, "orders", BILL)
        assert api(port, "/api/handlers?handler=orders/none") == (
            404, {"error": f"there is no handler 'orders/none' here: name one of {BILL}"}
        )  # fmt: skip
        assert worker.stop() == 0


@pytest.mark.real
def test_a_handler_is_paused_resumed_resized_and_drained_and_no_message_is_lost(nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, f"nsq://{nsqd.address}") as worker:
        port = port_of(worker)

        def act(**command: Any) -> Any:
            status, said = api(port, "/api/actions", {"handler": BILL, **command})
            assert status == 200, said
            return said["done"]

        def row() -> Any:
            return api(port, "/api/handlers")[1][0]

        assert act(action="pause") == f"paused {BILL}"
        [paused] = shown(port, "handlers", lambda rows: rows[0]["pause"] and api(port, "/api/connections")[1][0]["granted"] == 0)
        assert paused["pause"]["by"] == "operator"
        put(nsqd, *["slow"] * 300)
        assert row()["counts"]["received"] == 0
        act(action="resume")
        for index in range(10):
            act(action="concurrency", value=(1, 20, 3)[index % 3])
            act(action="max_in_flight", value=(50, 900)[index % 2])
            if index % 4 == 3:
                act(action="drain")
                time.sleep(0.2)
                act(action="resume")
        shown(port, "handlers", lambda rows: rows[0]["counts"]["finished"] == 300)
        found = row()
        assert (found["in_flight"], found["counts"]["lease_lost"], found["counts"]["dead"]) == (0, 0, 0)
        assert found["concurrency"] in (1, 20, 3)
        assert nsqd.channel_stats("orders", "bill")["depth"] == 0
        worker.wait_for(f"admin: 127.0.0.1: paused {BILL}")
        assert worker.stop() == 0


def test_who_may_not_ask_is_told_why_and_bad_input_changes_nothing(tmp_path: Path) -> None:
    with run(tmp_path, "memory://odd") as worker:
        port = port_of(worker)
        pause = {"action": "pause"}
        assert api(port, "/api/actions", pause, Origin="http://evil.example")[0] == 403
        assert api(port, "/api/actions", pause, Origin=f"http://127.0.0.1:{port + 1}")[0] == 403
        assert api(port, "/api/actions", pause, Sec_Fetch_Site="cross-site")[0] == 403
        assert api(port, "/api/actions", pause, Host="rebound.example")[0] == 403
        assert api(port, "/api/actions", pause, Content_Type="text/plain")[0] == 415
        assert api(port, "/api/actions", b"{")[0] == 400
        assert api(port, "/api/actions", b"[" * 100_000)[0] == 400
        assert cut_short(port).startswith(b"HTTP/1.1 400")
        assert api(port, "/api/actions", {"action": "explode"})[0] == 400
        assert api(port, "/api/actions", {"action": "pause", "handler": ["orders/bill"]})[0] == 400
        assert api(port, "/api/actions")[0] == 405
        assert get(port, "/api/handlers", method="DELETE")[0] == 405
        assert api(port, "/api/handlers")[1][0]["pause"] is None
        assert api(port, "/api/actions", pause, Origin=f"http://127.0.0.1:{port}") == (200, {"done": "paused all handlers"})
        assert "get" in api(port, "/api")[1]
        assert worker.stop() == 0
    assert not any("Traceback" in line for line in worker.err), "what anybody sends is no bug of ours"


def cut_short(port: int) -> bytes:
    """The answer to a body that is shorter than was said."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"POST /api/actions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        client.shutdown(socket.SHUT_WR)
        return client.recv(1000)


def test_a_token_is_demanded_where_it_is_set_and_told_to_nobody(tmp_path: Path) -> None:
    with run(tmp_path, "memory://odd", env={"WORKERS_ADMIN_TOKEN": TOKEN}) as worker:
        port = port_of(worker)
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}):
            assert api(port, "/api/handlers", **headers)[0] == 401
        assert get(port, "/metrics")[0] == 401
        assert (get(port, "/livez")[0], get(port, "/readyz")[0]) == (200, 200)
        assert api(port, "/api/handlers", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert api(port, "/api/actions", {"action": "pause"}, Authorization=f"bearer {TOKEN}")[0] == 200
        worker.wait_for("paused all handlers")
        assert worker.stop() == 0
    told = "\n".join([*worker.out, *worker.err])
    assert told.count("without the right token") == 1
    assert TOKEN not in told


def test_beyond_loopback_a_worker_without_a_token_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from framework import handler\n\n@handler('a', 'b')\ndef f(message): ...\n")
    done = call("run", "shop", "--broker", "memory://x", "--admin", "0.0.0.0:0", cwd=tmp_path)
    assert done.returncode == 2
    assert "can be reached from other machines: set a token" in done.stderr
    short = call("run", "shop", "--broker", "memory://x", cwd=tmp_path, env={"WORKERS_ADMIN_TOKEN": "too-short"})
    assert short.returncode == 2
    assert "$WORKERS_ADMIN_TOKEN: it is not 16 or more" in short.stderr
    assert "too-short" not in short.stderr
    checked = call("check", "shop", "--broker", "memory://x", cwd=tmp_path, env={"WORKERS_ADMIN_TOKEN": TOKEN})
    assert TOKEN not in checked.stdout


def test_what_is_read_only_changes_nothing(tmp_path: Path) -> None:
    with run(tmp_path, "memory://odd", "--admin-read-only") as worker:
        port = port_of(worker)
        assert api(port, "/api/actions", {"action": "pause"}) == (
            403,
            {"error": "this endpoint is read-only (--admin-read-only)"},
        )
        assert api(port, "/api")[1]["read_only"] is True
        assert api(port, "/api/handlers")[1][0]["pause"] is None
        assert worker.stop() == 0


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("slots", ["thread", "process"])
def test_threads_and_processes_come_and_go_under_load_and_no_message_is_lost(slots: str, nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, f"nsq://{nsqd.address}", slots=slots) as worker:
        port = port_of(worker)
        put(nsqd, *["slow"] * 400)
        for number in (4, 1, 3, 1, 2):
            status, said = api(port, "/api/actions", {"action": "concurrency", "handler": BILL, "value": number})
            assert status == 200, said
            before = api(port, "/api/handlers")[1][0]["counts"]["finished"]
            shown(port, "handlers", lambda rows, before=before: rows[0]["counts"]["finished"] >= min(400, before + 20))  # type: ignore[misc]
        shown(port, "handlers", lambda rows: rows[0]["counts"]["finished"] == 400)
        [row] = api(port, "/api/handlers")[1]
        assert (row["concurrency"], row["in_flight"], row["failures"]) == (2, 0, 0)
        assert row["counts"]["requeued"] == row["counts"]["lease_lost"] == row["counts"]["dead"] == 0
        assert nsqd.channel_stats("orders", "bill")["requeue_count"] == 0
        if slots == "process":
            children = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text().split()
            assert len(children) == 2
        assert worker.stop() == 0
    assert not any("Traceback" in line for line in worker.err)
