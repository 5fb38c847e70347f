"""Dead letters over HTTP on a real nsqd: counted, looked at, replayed, purged, and each count adds up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework.testing.servers import Server
from tests.admin.asking import api, port_of, run, shown

NAME = "orders/bill"


def url(nsqd: Server) -> str:
    return f"nsq://{nsqd.address}?http_port={nsqd.http_address.rpartition(':')[2]}"


def rejected(nsqd: Server, worker: Any, count: int = 5) -> int:
    """So many letters; the port."""
    port = port_of(worker)
    nsqd.http("/mpub?topic=orders", "\n".join(["reject"] * count).encode())
    shown(port, "dead", lambda rows: isinstance(rows, list) and rows[0]["letters"] == count)
    return port


@pytest.mark.real
def test_letters_are_counted_looked_at_replayed_and_purged(nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, url(nsqd)) as worker:
        port = rejected(nsqd, worker)
        [row] = api(port, "/api/dead")[1]
        assert (row["dead_topic"], row["handler"]) == ("orders.bill.dead", NAME)

        status, found = api(port, f"/api/dead/letters?name={NAME}&limit=3")
        assert (status, len(found["letters"])) == (200, 3)
        assert found["letters"][0].keys() >= {"id", "reason", "attempts", "dead", "size"}
        assert not any("body" in letter for letter in found["letters"]), "bodies are for who asks"
        ids = [letter["id"] for letter in found["letters"]]
        [letter] = api(port, f"/api/dead/letters?name={NAME}&id={ids[0]}&bodies=true")[1]["letters"]
        assert (letter["body"], letter["reason"]) == ("reject", "Reject: no")
        assert api(port, f"/api/dead/letters?name={NAME}&reason=nothing")[1]["letters"] == []
        assert len(api(port, f"/api/dead/letters?name={NAME}&since=1h")[1]["letters"]) == 5

        assert api(port, "/api/dead/replay", {"name": NAME, "dry_run": True})[1]["replayed"] == 5
        assert api(port, "/api/dead")[1][0]["letters"] == 5
        api(port, "/api/actions", {"action": "pause"})
        said = api(port, "/api/dead/replay", {"name": NAME, "ids": ids[:2]})
        assert said == (200, {"replayed": 2, "failed": 0, "why": "", "to": ["orders"], "kept": 3, "dry_run": False})
        worker.wait_for(f"admin: 127.0.0.1: replayed 2 dead letters of {NAME} to orders")

        refused = api(port, "/api/dead/purge", {"name": NAME})
        assert refused == (400, {"error": 'what is purged is gone for good: choose letters, or say "all": true'})
        assert api(port, "/api/dead/purge", {"name": NAME, "ids": [ids[2]]})[1]["purged"] == 1
        assert api(port, "/api/dead/purge", {"name": NAME, "all": True})[1] == {
            "purged": 2, "why": "", "kept": 0, "dry_run": False
        }  # fmt: skip
        assert api(port, "/api/dead")[1][0]["letters"] == 0
        assert nsqd.channel_stats("orders", "bill")["depth"] == 2
        assert worker.stop() == 0


@pytest.mark.real
def test_a_replay_to_other_channels_as_well_has_to_be_said(nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, url(nsqd)) as worker:
        port = rejected(nsqd, worker, 2)
        nsqd.http("/channel/create?topic=orders&channel=other", b"")
        status, said = api(port, "/api/dead/replay", {"name": NAME})
        assert status == 400
        assert 'say "all_channels": true' in said["error"]
        assert api(port, "/api/dead/replay", {"name": NAME, "to": "elsewhere"})[1]["replayed"] == 2
        assert worker.stop() == 0


@pytest.mark.parametrize(("given", "words"), [
    ({}, "missing required field `name`"),
    ({"name": NAME, "idss": []}, "unknown field `idss`"),
    ({"name": NAME, "limit": 0}, "limit=0 is not 1 or more"),
    ({"name": NAME, "since": "soon"}, "since: 'soon' is not a time"),
    ({"name": "a b/c"}, "a b"),
    ([], "Expected `object`"),
])  # fmt: skip
def test_what_cannot_be_chosen_is_refused_in_a_sentence(given: Any, words: str, memory_port: int) -> None:
    status, said = api(memory_port, "/api/dead/replay", given)
    assert status == 400
    assert words in said["error"]


def test_of_a_topic_that_is_not_there_nothing_is_done(memory_port: int) -> None:
    assert api(memory_port, "/api/dead/letters?name=no/such") == (200, {"letters": [], "cut_short": ""})
    assert api(memory_port, "/api/dead/replay", {"name": "no/such"})[1]["replayed"] == 0
    assert api(memory_port, "/api/dead/letters?name=no/such&limit=9999")[0] == 400
    assert api(memory_port, "/api/dead/letters")[0] == 400


@pytest.fixture(scope="module")
def memory_port(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with run(tmp_path_factory.mktemp("memory"), "memory://letters") as worker:
        yield port_of(worker)
