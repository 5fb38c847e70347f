"""Each log record of a call says which call, in greenlets, threads and slot processes; as text and as JSON."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from framework.testing.servers import Server
from framework.testing.workers import working

SHOP = """
    import logging, time
    import gevent
    from framework import Batch, Message, handler

    log = logging.getLogger("shop")
    log.info("imported")

    def work(message):
        text = message.body.decode()
        log.info("begin %s", text)
        time.sleep(0.05)  # others run meanwhile
        log.info("end %s", text, extra={"order": int(text)})
        if text == "7":
            raise ValueError("seven")

    @handler("orders", "greenlet", concurrency=5)
    def in_greenlet(message: Message):
        work(message)
        gevent.spawn(log.info, "child").join()

    @handler("orders", "thread", concurrency=5, slots="thread")
    def in_thread(message: Message): work(message)

    @handler("orders", "process", concurrency=2, slots="process")
    def in_process(message: Message): work(message)

    @handler("orders", "batch", batch=10, linger=0.5)
    def in_batch(batch: Batch): log.info("batch")
"""
CHANNELS = ("greenlet", "thread", "process", "batch")


def run(folder: Path, nsqd: Server, *more: str) -> Any:
    (folder / "shop.py").write_text(textwrap.dedent(SHOP))
    nsqd.http("/topic/create?topic=orders", b"")
    for channel in CHANNELS:
        nsqd.http(f"/channel/create?topic=orders&channel={channel}", b"")
    nsqd.http("/mpub?topic=orders", "\n".join(map(str, range(10))).encode())
    return working("run", "shop", "--broker", f"nsq://{nsqd.address}", *more, cwd=folder)


@pytest.mark.real
def test_records_in_json_belong_to_their_calls(nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, nsqd, "--log-format", "json") as worker:
        worker.wait_until(lambda: sum('"end ' in line for line in worker.err) >= 30)
        worker.wait_for('"batch"')
        assert worker.stop() == 0
    records = [json.loads(line) for line in worker.err]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one["time"]) for one in records)
    assert all(one["process"] > 0 and one["level"] and one["logger"] for one in records)
    shop = [one for one in records if one["logger"] == "shop"]
    assert all("handler" not in one for one in shop if one["message"] == "imported")
    for channel in CHANNELS[:3]:
        mine = [one for one in shop if one.get("channel") == channel and one["message"] != "child"]
        assert {(one["handler"], one["topic"]) for one in mine} == {(f"orders/{channel}", "orders")}
        began = {one["id"]: one["message"].split()[1] for one in mine if one["message"].startswith("begin")}
        ended = {one["id"]: one["message"].split()[1] for one in mine if one["message"].startswith("end")}
        assert len(set(began.values())) == len(began) == 10
        assert ended == began, "a record was bound to another message"
        assert {one["order"] for one in mine if "order" in one} == set(range(10))
        assert {one["attempt"] for one in mine if not one["message"].endswith("7")} == {1}
        failed = [one for one in records if one.get("channel") == channel and "failed at attempt 1" in one["message"]]
        assert len(failed) == 1, "one failure is one record"
        assert began[failed[0]["id"]] == "7"
        assert "in work" in failed[0]["exception"]
        assert "framework/" not in failed[0]["exception"]
    processes = {one["process"] for one in shop if one.get("channel") == "process"}
    assert worker.process.pid not in processes
    children = [one for one in shop if one["message"] == "child"]
    assert all(one["handler"] == "orders/greenlet" and "id" not in one for one in children)
    [batch] = [one for one in shop if one["message"] == "batch"]
    assert (batch["handler"], batch["messages"]) == ("orders/batch", 10)


@pytest.mark.real
def test_lines_of_text_have_the_time_and_the_call_and_no_colours_in_a_file(nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, nsqd, "--log-frames", "all") as worker:
        worker.wait_until(lambda: sum("end 7" in line for line in worker.err) >= 3)
        worker.wait_until(lambda: sum("ValueError: seven" in line and "failed" not in line for line in worker.err) >= 3)
        assert worker.stop() == 0
    head = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \d+ (INFO|WARNING|ERROR) [\w.]+ "
    assert all(re.match(head, line) for line in worker.err)
    assert not any("\x1b" in line for line in worker.err)
    for channel in CHANNELS[:3]:
        assert any(re.fullmatch(rf"{head}\[orders/{channel} [0-9a-f]{{16}} #1\] end 7", line) for line in worker.err)
    assert any("/framework/" in line for line in worker.err), "the framework's frames were asked for"
