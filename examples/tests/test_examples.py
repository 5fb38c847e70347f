"""Tests of handlers, as you would write them for your own: pip install nsq-workers, and pytest has these fixtures.

    pytest examples/tests

``broker`` is a broker in memory, empty for each test; publish() goes to it. ``worker`` runs handlers until they have nothing left
to do, and returns how every message ended. docs/testing.md has the rest: time, faults, and tests on a real socket.
"""

from examples import batch, hello, publish_from_handler, retries
from framework import publish


def test_who_is_published_is_greeted(broker, worker, capsys):
    publish("greetings", "world")
    ledger = worker.run(hello.greet)
    assert ledger.finished == 1
    assert capsys.readouterr().out == "hello, world\n"


def test_an_order_without_a_card_is_given_up_with_the_reason(broker, worker):
    publish("orders", {"id": 8, "card": ""})
    assert worker.run(retries.bill).dead == 1
    [letter] = broker.dead_letters("orders", "billing")
    assert letter.reason == "Reject: order 8 has no card"


def test_an_order_is_audited_at_its_second_delivery(broker, worker, capsys):
    publish("orders", {"id": 7, "card": "4111"})
    ledger = worker.run(retries.audit)
    assert (ledger.received, ledger.requeued, ledger.finished) == (2, 1, 1)
    assert "audited at attempt 2" in capsys.readouterr().out


def test_a_purchase_becomes_parcels_and_an_invoice(broker, worker, capsys):
    publish("purchases", {"id": 7, "items": ["tea", "cups"]})
    worker.run(publish_from_handler.pack)
    assert broker.waiting("parcels") == [b'{"purchase":7,"item":"tea"}', b'{"purchase":7,"item":"cups"}']
    worker.run(publish_from_handler)  # all that the module declares; the invoice's delay takes no time here
    assert "invoice for 2 parcels of purchase 7" in capsys.readouterr().out


def test_a_bad_reading_does_not_spoil_its_batch(broker, worker):
    broker.publish_many("readings", ["3", "4", "many"])
    ledger = worker.run(batch.add_up)
    assert (ledger.finished, ledger.dead) == (2, 1)
