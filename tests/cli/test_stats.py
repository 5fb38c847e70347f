"""``workers stats`` counts what waits as the brokers do, takes nothing, and does not guess."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from framework.testing.servers import Server
from framework.testing.workers import call

pytestmark = pytest.mark.real


def url(nsqd: Server) -> str:
    return f"nsq://{nsqd.address}?http_port={nsqd.http_port}"


def filled(nsqd: Server) -> Server:
    for topic in ("orders", "news"):
        nsqd.http(f"/topic/create?topic={topic}", b"")
    for channel in ("billing", "audit"):
        nsqd.http(f"/channel/create?topic=orders&channel={channel}", b"")
    nsqd.http("/mpub?topic=orders", b"a\nb\nc")
    nsqd.http("/pub?topic=orders&defer=600000", b"d")
    nsqd.http("/pub?topic=news", b"e")
    return nsqd


def test_every_channel_is_counted_and_nothing_is_taken(nsqd: Server, tmp_path: Path) -> None:
    filled(nsqd)
    for _ in range(2):
        done = call("stats", "--broker", url(nsqd), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == ["       1  news", "       4  orders/audit", "       4  orders/billing"]
    assert [each["clients"] for each in nsqd.http("/stats?format=json&topic=orders")["topics"][0]["channels"]] == [[], []]


def test_named_topics_as_json(nsqd: Server, tmp_path: Path) -> None:
    done = call("stats", "orders", "nowhere", "--json", "--broker", url(filled(nsqd)), cwd=tmp_path)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"topic": "orders", "channel": channel, "messages": 4, "nodes": {nsqd.address: 4}} for channel in ("audit", "billing")
    ]
    assert (done.returncode, done.stderr) == (4, "workers: nowhere: there is no such topic\n")


def test_a_topic_that_is_not_there_is_not_taken_for_an_empty_one(nsqd: Server, tmp_path: Path) -> None:
    done = call("stats", "nosuch", "--broker", url(filled(nsqd)), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (4, "", "workers: nosuch: there is no such topic\n")


def test_a_count_that_cannot_be_had_is_not_guessed(nsqd: Server, tmp_path: Path) -> None:
    broker = f"nsq://{nsqd.address}?http_port=1"
    done = call("stats", "--broker", broker, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    (tmp_path / "shop.py").write_text("from framework import handler\n@handler('orders', 'billing')\ndef bill(m: bytes): ...\n")
    checked = call("check", "shop", "--broker", broker, cwd=tmp_path)
    assert checked.returncode == 0
    assert "note  broker   " in checked.stdout
    assert "`workers stats` cannot count" in checked.stdout
