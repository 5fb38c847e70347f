"""What the user of a broker URL may not say on NATS, and what the account may not have: told before messages come for nothing."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from framework.errors import AccessDenied, MessageRefused, PublishError
from framework.testing.workers import call

from .conftest import until
from .holding import BOTH, left

pytestmark = pytest.mark.real

USERS = """authorization {{ users: [
    {{ user: admin, password: secret }}
    {{ user: shop, password: secret, permissions: {{ {} }} }}
]}}"""
NO_ACKS = 'publish: { deny: ["$JS.ACK.>"] }'


@pytest.fixture
def kit_for(make_kit, version: str = "2.15"):
    """``kit_for(permissions)``: a server with the users admin and shop, whose permissions these are."""
    return lambda permissions, **options: make_kit(USERS.format(permissions), **options)


def filled(kit, count: int = 3) -> Any:
    """A transport of the admin, with so many messages for orders/billing."""
    admin = kit.open("?ack_wait=2s", "admin:secret@")
    admin.ensure("orders", ["billing"])
    kit.producer(admin).publish("orders", [b"%d" % n for n in range(count)])
    return admin


def check(kit, folder: Path) -> tuple[int, str]:
    (folder / "shop.py").write_text('from framework import handler\n@handler("orders", "billing")\ndef f(m: bytes): ...\n')
    done = call("check", "shop", "--broker", f"nats://shop:secret@{kit.server.address}", cwd=folder)
    return done.returncode, done.stdout


@BOTH
def test_a_user_who_may_not_acknowledge_gets_no_message_and_is_told_why(kit_for, tmp_path: Path, version: str):
    kit = kit_for(NO_ACKS, version=version)
    admin = filled(kit)
    words = r"nothing can be acknowledged.*: let this user publish to \$JS\.ACK\.orders\.billing\.>"
    with pytest.raises(AccessDenied, match=words):
        kit.hold(kit.open("", "shop:secret@"))
    assert left(kit, admin) == 3
    code, said = check(kit, tmp_path)
    assert (code, "nothing can be acknowledged" in said, "secret" in said) == (2, True, False), said


@BOTH
def test_a_user_who_may_acknowledge_one_channel_serves_it_and_what_is_said_to_find_out_does_nothing(kit_for, version: str):
    allow = '"$JS.API.>", "$JS.ACK.orders.billing.>"'
    kit = kit_for(f"publish: {{ allow: [{allow}] }}", version=version)
    admin = filled(kit)
    held = kit.hold(kit.open("", "shop:secret@"), grant=3)
    until(lambda: len(held.taken) == 3)
    assert [message.attempts for message in held.taken] == [1, 1, 1]
    for message in list(held.taken):
        held.connection.finish(message)
    until(lambda: left(kit, admin) == 0)


def test_what_may_not_be_pulled_fails_the_check(kit_for, tmp_path: Path):
    kit = kit_for('publish: { deny: ["$JS.API.CONSUMER.MSG.NEXT.>"] }')
    filled(kit)
    code, said = check(kit, tmp_path)
    assert (code, "nothing can be pulled, let this user publish to $JS.API.CONSUMER.MSG.NEXT.orders.billing" in said) == (2, True)


def test_what_was_refused_while_it_worked_does_not_count_as_finished(kit_for):
    kit = kit_for("")
    admin = filled(kit)
    held = kit.hold(kit.open("", "shop:secret@"), grant=3)
    until(lambda: len(held.taken) == 3)
    held.connection.finish(held.taken[0])
    until(lambda: held.receiver.tally.finished == 1 and left(kit, admin) == 2)
    file = kit.server.data / "nats.conf"
    file.write_text(file.read_text().replace("permissions: {  }", f"permissions: {{ {NO_ACKS} }}"))
    kit.server.process.send_signal(signal.SIGHUP)
    until(lambda: "Reloaded server configuration" in "".join(kit.server.log))
    for message in held.taken[1:]:
        held.connection.finish(message)
    until(lambda: held.receiver.closings)
    assert (held.receiver.tally.finished, held.receiver.tally.lease_lost) == (1, 2)
    assert left(kit, admin) == 2


def test_a_publisher_who_may_not_hear_answers_is_told_so_at_once(kit_for):
    kit = kit_for('subscribe: { deny: ["_INBOX.>"] }')
    admin = filled(kit)
    with pytest.raises(PublishError, match=r"answers come there, let this user subscribe to _INBOX\.>") as caught:
        kit.producer(kit.open("", "shop:secret@")).publish("orders", [b"more"])
    assert caught.value.stored is False
    assert left(kit, admin) == 3


def test_a_body_over_what_the_account_may_send_is_refused_by_itself(make_kit):
    kit = make_kit(
        "accounts { A: { jetstream: enabled, users: [{ user: shop, password: secret }], limits { max_payload: 1000 } } }"
    )
    shop = kit.open("", "shop:secret@")
    shop.ensure("orders", ["billing"])
    answers = kit.producer(shop).publish_each("orders", [b"small", b"x" * 2000, b"small"])
    assert [type(answer) for answer in answers] == [type(None), MessageRefused, type(None)]
    assert left(kit, shop) == 2


def test_streams_and_consumers_that_an_account_may_not_have_fail_the_check(make_kit):
    limits = "max_mem: 1M, max_file: 1M, max_streams: 1, max_consumers: 1"
    kit = make_kit(f"accounts {{ A: {{ jetstream: {{ {limits} }}, users: [{{ user: shop, password: secret }}] }} }}")
    shop = kit.open("", "shop:secret@")
    shop.ensure("orders", ["billing"])
    (other,) = shop.describe("others", "billing")
    (second,) = shop.describe("orders", "shipping")
    (first,) = shop.describe("orders", "billing")
    assert "may have 1 streams (max_streams), and one more is needed for others" in other.obstacles[0]
    assert "has as many consumers as it, or the account, may (max_consumers)" in second.obstacles[0]
    assert first.obstacles == ()


@pytest.mark.parametrize(
    ("permissions", "fix"),
    [
        ('publish: { deny: ["$JS.API.STREAM.CREATE.>"] }', "let this user publish to $JS.API.>"),
        ('publish: { deny: ["$JS.API.>"] }', "let this user publish to $JS.API.>"),
        ('subscribe: { deny: ["_INBOX.>"] }', "answers come there, let this user subscribe to _INBOX.>"),
    ],
    ids=["no streams", "no JetStream", "no answers"],
)
def test_a_worker_whose_user_may_not_ask_ends_at_once_and_is_told_what_to_permit(
    kit_for, tmp_path: Path, permissions: str, fix: str
):
    """It would not be other at the deadline, and neither the broker nor its URL is at fault."""
    kit = kit_for(permissions)
    (tmp_path / "shop.py").write_text('from framework import handler\n@handler("orders", "billing")\ndef f(m: bytes): ...\n')
    broker = f"nats://shop:secret@{kit.server.address}"
    done = call("run", "shop", "--broker", broker, "--connect-deadline", "20s", cwd=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, fix in last, "no broker accepts it" in last, "check its URL" in last) == (3, True, True, False), last
