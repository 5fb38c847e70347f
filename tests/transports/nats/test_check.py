"""``workers check`` on NATS: what streams and consumers of others would do to a handler is said before anything is started."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from framework.testing.workers import call

pytestmark = pytest.mark.real


@pytest.fixture
def check(kit, tmp_path: Path):
    """``check()`` -> exit code and the lines about the handler orders.new/billing."""
    (tmp_path / "shop.py").write_text('from framework import handler\n@handler("orders.new", "billing")\ndef f(m: bytes): ...\n')

    def run(options: str = "") -> tuple[int, str]:
        done = call("check", "shop", "--broker", f"nats://{kit.server.address}{options}", cwd=tmp_path)
        return done.returncode, "\n".join(line for line in done.stdout.splitlines() if not line.startswith("ok    setting"))

    return run


def make(kit, what: str, body: dict) -> None:
    answer = kit.session.ask(f"$JS.API.{what}".encode(), msgspec.json.encode(body), 5.0)
    assert b'"error"' not in answer.body


def stream(kit, **config: object) -> None:
    make(kit, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"], **config})


def consumer(kit, name: str = "billing", **config: object) -> None:
    config = {"durable_name": name, "ack_policy": "explicit", "filter_subject": "orders.new", "ack_wait": 30 * 10**9, **config}
    make(kit, f"CONSUMER.DURABLE.CREATE.ORDERS.{name}", {"stream_name": "ORDERS", "config": config})


def test_where_nothing_is_yet_all_is_well_and_nothing_is_made(kit, check):
    code, said = check()
    assert (code, "note" in said) == (0, False)
    assert f"{kit.server.address} nats-server 2.15.1: a lease is 30 s, longer while it is touched" in said
    assert list(kit.api.streams()) == []


def test_limits_that_drop_messages_are_named(kit, check):
    stream(kit, max_age=3600 * 10**9, max_msgs=10, discard="old")
    code, said = check()
    assert code == 0
    assert "note  handler  shop.f (shop.py:2): stream ORDERS drops what is older than 3600 s (max_age), handled or not" in said
    assert "drops the oldest message when it is full (max_msgs=10, discard=old), handled or not" in said


def test_a_stream_that_keeps_all_for_ever_and_one_that_keeps_nothing_for_nobody_are_named(kit, check):
    stream(kit)
    assert "keeps what was handled for ever (retention=limits" in check()[1]
    make(kit, "STREAM.DELETE.ORDERS", {})
    stream(kit, retention="interest", discard="new", max_msgs=10)
    said = check()[1]
    assert "has retention=interest: what comes before a channel's first worker is gone" in said
    assert "drops" not in said


def test_a_consumer_that_ends_deliveries_or_holds_few_is_named(kit, check):
    stream(kit)
    consumer(kit, max_deliver=5, max_ack_pending=7, ack_wait=9 * 10**9)
    code, said = check()
    assert code == 0
    assert "ends after 5 deliveries without a dead letter (max_deliver)" in said
    assert "hold 7 messages (max_ack_pending)" in said
    assert "has a lease of 9 s (ack_wait)" in said


def test_a_lease_that_is_over_before_it_can_be_touched_is_named(kit, check):
    stream(kit)
    consumer(kit, ack_wait=30 * 10**9, max_deliver=5, backoff=[200_000_000, 10**9])
    assert "has a lease of 0.2 s, which is too short to be kept while a handler runs" in check()[1]


def test_a_consumer_that_cannot_serve_fails_the_check_by_its_difference(kit, check):
    stream(kit)
    consumer(kit, filter_subject="orders.old")
    code, said = check()
    assert code == 2
    assert "FAIL  handler  shop.f (shop.py:2): consumer billing of stream ORDERS is of orders.old and not of orders.new" in said


def test_a_work_queue_whose_messages_another_consumer_takes_fails_the_check(kit, check):
    stream(kit, retention="workqueue")
    consumer(kit, "shipping")
    code, said = check()
    assert code == 2
    assert "stream ORDERS is a work queue, whose consumer shipping takes orders.new already" in said
