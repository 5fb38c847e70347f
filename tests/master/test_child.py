"""One process as its master sees it: each question has the answer that was given to it, in whatever order they come."""

from __future__ import annotations

import sys
from pathlib import Path

import gevent
import gevent.socket
import pytest

from framework.master import child as of_master
from framework.master.child import Child

ANSWERS = """
import json, os, socket
its = socket.socket(fileno=int(os.environ["WORKERS_MASTER_FD"]))
its.setblocking(True)
asked = [json.loads(line)["question"] for _, line in zip(range(3), its.makefile("rb"))]
for number in (asked[1], asked[0]):
    its.sendall(json.dumps({"question": number, "answer": f"to {number}"}).encode() + b"\\n")
its.recv(1)
its.sendall(json.dumps({"question": asked[2], "answer": "late"}).encode() + b"\\n")
"""

KILLED = """
import json, os, signal, socket
its = socket.socket(fileno=int(os.environ["WORKERS_MASTER_FD"]))
its.setblocking(True)
counts = {"received": 5, "finished": 3, "requeued": 0, "dead": 0, "lease_lost": 0}
def say(**what): its.sendall(json.dumps(what).encode() + b"\\n")
say(ledgers={"orders/bill": counts}, published={})
its.recv(100)
row = {"handler": "orders/bill", "counts": {**counts, "received": 9, "finished": 6, "lost": 0}, "published": {"invoices": 6}}
say(question=1, answer={"handlers": [row]})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_two_who_ask_at_once_get_their_answers_and_nobody_s_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_master, "socket", gevent.socket)  # as it is where a master runs
    child = Child([sys.executable, "-c", ANSWERS], str(tmp_path), generation=1, heard=lambda *_: None)
    first, second, given_up = (child.ask({"do": "snapshot"}) for _ in range(3))
    with gevent.Timeout(20):
        while not (child.has_answered(first) and child.has_answered(second)):
            gevent.sleep(0.01)
        assert [child.answer(one) for one in (second, first, given_up)] == ["to 2", "to 1", None]
        child.tell({})
        while child.code is None:
            gevent.sleep(0.01)
        gevent.sleep(0.1)
    assert child._answers == {}


def test_what_was_shown_of_one_that_is_killed_is_in_its_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_master, "socket", gevent.socket)
    child = Child([sys.executable, "-c", KILLED], str(tmp_path), generation=1, heard=lambda *_: None)
    with gevent.Timeout(20):
        while not child.ledgers:
            gevent.sleep(0.01)
        assert child.ledgers["orders/bill"]["finished"] == 3
        child.ask({"do": "snapshot"})
        while child.code is None:
            gevent.sleep(0.01)
        gevent.sleep(0.1)
    assert child.ledgers == {"orders/bill": {"received": 9, "finished": 6, "requeued": 0, "dead": 0, "lease_lost": 3}}
    assert child.published == {"orders/bill": {"invoices": 6}}
