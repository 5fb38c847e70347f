"""What a worker says of itself over HTTP: the right answer within a second, whatever is wrong, and at no cost to its messages."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import gevent
import psutil
import pytest

from framework.admin import Access, pages
from framework.admin.address import listen
from framework.admin.requests import Request
from framework.errors import BadSetting
from framework.master.source import Children
from framework.testing.servers import Server
from framework.testing.workers import call
from framework.transports import open_transports
from tests.admin.asking import get, port_of, run, soon, until, values

AT_LENGTH = bool(os.environ.get("AT_LENGTH"))


@pytest.mark.real
@pytest.mark.parametrize("slots", ["greenlet", "thread", "process"])
def test_the_figures_are_the_ledger_s(slots: str, nsqd: Server, tmp_path: Path) -> None:
    nsqd.http("/mpub?topic=orders", "\n".join(["ok"] * 300 + ["slow"] * 5 + ["bad"] * 2 + ["reject"]).encode())
    with run(tmp_path, f"nsq://{nsqd.address}", "--ledger", "ledger", slots=slots) as worker:
        port = port_of(worker)
        ended = ("messaging_client_consumed_messages_total", "bill")
        until(port, *ended, "finished", is_=lambda count: count == 305)
        time.sleep(0.6)  # metrics are made anew after half a second
        found = values(port)
        assert worker.stop() == 0
    outcomes = sum(value for key, value in found.items() if key[:2] == ended)
    received = found["messaging_client_received_messages_total", "bill"]
    assert received == outcomes + found["messaging_client_in_flight_messages", "bill"]
    assert found[*ended, "dead"] == json.loads((tmp_path / "ledger").read_text())["orders/bill"]["dead"] == 1
    assert found["messaging_client_sent_messages_total",] == 1
    calls = found["messaging_process_duration_seconds_count", "bill"]
    assert calls == outcomes
    slow = calls - found["messaging_process_duration_seconds_bucket", "bill", "0.025"]
    assert slow >= 5
    assert found["messaging_process_duration_seconds_sum", "bill"] >= 0.15
    assert found["messaging_process_wait_seconds_count", "bill"] >= 5
    assert found["messaging_client_connections", "bill"] == found["messaging_client_connections_wanted", "bill"] == 1


@pytest.mark.real
def test_the_backlog_is_the_broker_s(nsqd: Server, tmp_path: Path) -> None:
    nsqd.http("/mpub?topic=orders", "\n".join(["wait"] * 7).encode())
    with run(tmp_path, f"nsq://{nsqd.address}?http_port={nsqd.http_address.rpartition(':')[2]}") as worker:
        port = port_of(worker)
        until(port, "messaging_channel_backlog_messages", "bill", is_=lambda count: count == 7)
        assert values(port)["messaging_channel_oldest_age_seconds", "bill"] > 0
        assert values(port)["messaging_process_running_calls", "bill"] == 2
        worker.process.kill()


@pytest.mark.real
def test_a_broker_that_is_away_makes_it_unready_and_no_less_alive(start_nsqd: Callable[..., Server], tmp_path: Path) -> None:
    nsqd = start_nsqd()
    with run(tmp_path, f"nsq://{nsqd.address}") as worker:
        port = port_of(worker)
        assert get(port, "/readyz") == (200, "ok\n")
        nsqd.process.kill()
        assert "handler orders/bill has no connection" in soon(lambda: get(port, "/readyz"), 503)
        assert get(port, "/livez") == (200, "ok\n")
        assert get(port, "/metrics")[0] == 200
        worker.process.kill()


@pytest.mark.real
def test_a_connection_that_outlives_its_server_for_what_runs_is_none_until_there_is_one_again(start_nats, tmp_path: Path) -> None:
    server = start_nats()
    with run(tmp_path, f"nats://{server.address}") as worker:
        port = port_of(worker)
        with closing(open_transports([f"nats://{server.address}"])[0].producer()) as producer:
            producer.publish("orders", [b"wait"])
        until(port, "messaging_process_running_calls", "bill", is_=lambda count: count == 1)
        assert get(port, "/readyz") == (200, "ok\n")
        server.kill()
        words = soon(lambda: get(port, "/readyz"), 503)
        assert f"handler orders/bill has no connection to a broker (nats-server {server.address} cannot be reached" in words
        assert get(port, "/livez") == (200, "ok\n")
        until(port, "messaging_client_connections", "bill", is_=lambda count: count == 0)
        (row,) = json.loads(get(port, "/api/connections")[1])
        assert (row["in_flight"], server.address in row["away"]) == (1, True)
        server.start()
        soon(lambda: get(port, "/readyz"), 200)
        worker.process.kill()


@pytest.mark.real
def test_a_handler_that_blocks_the_hub_is_stuck_past_its_timeout_and_not_before(nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, f"nsq://{nsqd.address}", timeout=1.5) as worker:
        port = port_of(worker)
        nsqd.http("/pub?topic=orders", b"block")
        until(port, "messaging_hub_blocked_seconds", is_=lambda seconds: seconds > 0.5)
        if values(port)["messaging_hub_blocked_seconds",] < 1.0:
            assert get(port, "/livez")[0] == 200, "it is within its timeout"
        assert "handler orders/bill, whose timeout is 1.5 s, has blocked the hub" in soon(lambda: get(port, "/livez"), 503)
        soon(lambda: get(port, "/livez"), 200, seconds=3)
        assert worker.stop() == 0


@pytest.mark.real
def test_threads_that_do_not_return_are_a_stuck_worker(nsqd: Server, tmp_path: Path) -> None:
    nsqd.http("/mpub?topic=orders", b"hang\nhang")
    with run(tmp_path, f"nsq://{nsqd.address}", timeout=1, slots="thread") as worker:
        port = port_of(worker)
        words = soon(lambda: get(port, "/livez"), 503, seconds=2)
        assert "handler orders/bill: all of its 2 calls are past their timeout" in words
        assert "no thread or process" in soon(lambda: get(port, "/readyz"), 503)
        worker.process.kill()


@pytest.mark.real
def test_a_worker_that_drains_is_alive_and_not_ready(nsqd: Server, tmp_path: Path) -> None:
    nsqd.http("/pub?topic=orders", b"wait")
    with run(tmp_path, f"nsq://{nsqd.address}", "--drain", "2") as worker:
        port = port_of(worker)
        until(port, "messaging_process_running_calls", "bill", is_=lambda count: count == 1)
        worker.process.terminate()
        assert "draining" in soon(lambda: get(port, "/readyz"), 503)
        assert get(port, "/livez") == (200, "ok\n")
        assert worker.wait() == 0


def test_who_asks_for_what_is_not_there_is_told(tmp_path: Path) -> None:
    with run(tmp_path, "memory://odd") as worker:
        port = port_of(worker)
        silent = socket.create_connection(("127.0.0.1", port), timeout=20)
        assert get(port, "/metrics", host=f"localhost:{port}")[0] == 200
        assert get(port, "/metrics", host="rebound.example")[0] == 403
        assert get(port, "/metrics", host="127.0.0.1.rebound.example")[0] == 403
        assert get(port, "/other")[0] == 404
        assert get(port, "/livez", method="POST")[0] == 405
        assert get(port, "/livez", method="HEAD") == (200, "")
        with socket.create_connection(("127.0.0.1", port), timeout=20) as odd:
            odd.sendall(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n")
            assert odd.recv(100).startswith(b"HTTP/1.1 400 ")
        assert not any("Traceback" in line for line in worker.err), "of a client's nonsense"
        done = call("run", "shop", "--broker", "memory://two", "--admin", f"{port}", cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].endswith("address already in use; give another port, or a path")
        assert "Traceback" not in done.stderr
        assert silent.recv(1) == b"", "who says nothing is not given up"
        assert worker.stop() == 0


def test_it_listens_at_a_path_and_leaves_none_behind(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with run(tmp_path, "memory://path", "--admin", str(path)) as worker:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(5)
        client.connect(str(path))
        client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
        assert path.stat().st_mode & 0o777 == 0o600
        assert worker.stop() == 0
    assert not path.exists()


def test_a_path_that_a_worker_serves_who_hangs_is_refused_and_another_s_socket_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "hung.sock")
    with socket.socket(socket.AF_UNIX) as hung, socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        hung.bind(path)
        hung.listen(0)
        for client in (first, second):
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(path)
        with pytest.raises(BadSetting, match="address already in use"):
            listen(path)
    former = listen(str(tmp_path / "admin.sock"))
    os.unlink(former.path)
    latter = listen(former.path)
    former.close()
    assert os.path.exists(latter.path)
    latter.close()
    assert not os.path.exists(latter.path)


@pytest.mark.real
def test_scrapes_and_a_client_that_never_reads_are_nothing_to_the_handlers(nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, f"nsq://{nsqd.address}") as worker:
        port = port_of(worker)
        deaf = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for one in deaf:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        process = psutil.Process(worker.process.pid)
        for number in range(10_000 if AT_LENGTH else 100):
            assert get(port, "/metrics")[0] == 200
            if number == 50:
                took = process.memory_info().rss
        assert process.memory_info().rss - took < 10 << 20
        nsqd.http("/mpub?topic=orders", "\n".join(["ok"] * 1000).encode())
        worker.wait_until(lambda: nsqd.channel_stats("orders", "bill")["depth"] == 0)
        files = process.num_fds()
        for one in deaf:
            one.close()
        worker.wait_until(lambda: process.num_fds() <= files - len(deaf) + 1)
        assert worker.stop() == 0
    assert not any("Traceback" in line for line in worker.err)


def test_clients_that_stand_still_keep_no_probe_out(tmp_path: Path) -> None:
    with run(tmp_path, "memory://x") as worker:
        port = port_of(worker)
        standing = [socket.create_connection(("127.0.0.1", port)) for _ in range(600)]
        assert get(port, "/livez") == (200, "ok\n")
        for one in standing:
            one.close()
        worker.stop()


def test_a_process_that_can_open_few_files_answers_all_the_same_and_says_so_once(nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, f"nsq://{nsqd.address}") as worker:
        port = port_of(worker)
        process = psutil.Process(worker.process.pid)
        process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds() + 4, process.rlimit(psutil.RLIMIT_NOFILE)[1]))
        standing = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        worker.wait_until(lambda: _probed(port) == (200, "ok\n"))
        nsqd.http("/mpub?topic=orders", b"1\n2\n3")
        assert all(one.fileno() > 0 for one in standing)
        for one in standing:
            one.close()
        finished = ("messaging_client_consumed_messages_total", "bill", "finished")
        worker.wait_until(lambda: _probed(port) == (200, "ok\n"))
        until(port, *finished, is_=lambda count: count == 3)
        assert worker.stop() == 0
    assert sum("can open no more files" in line for line in worker.err) == 1
    assert not [line for line in worker.err if "Traceback" in line]


def _probed(port: int) -> object:
    try:
        return get(port, "/livez")
    except OSError as error:
        return error


def test_a_page_of_metrics_is_as_old_as_making_it_took_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def generate(*_: object) -> bytes:
        made.append(1)
        gevent.sleep(0.3)  # others use the machine
        return b""

    monkeypatch.setattr(pages, "generate_latest", generate)
    asked = pages.Pages(Children(gevent.get_hub().loop, list), list, Access(local=True))
    request = Request("GET", "/metrics", {}, {"host": "localhost"}, b"", "127.0.0.1")
    asked.answer(request)
    gevent.sleep(0.6)
    assert asked.answer(request).status == 200
    assert len(made) == 2
