"""A module with one handler, and what became of its messages."""

from __future__ import annotations

import json
from pathlib import Path

from framework.testing.servers import Server
from framework.testing.workers import Worker

SAY = """
    @handler("orders", "say")
    def say(text: str) -> None:
        print(f"got {text}", flush=True)
"""


def broker(nsqd: Server) -> str:
    return f"nsq://{nsqd.address}"


def put(nsqd: Server, *bodies: str, topic: str = "orders") -> None:
    nsqd.http(f"/mpub?topic={topic}", "\n".join(bodies).encode())


def numbers(worker: Worker) -> set[int]:
    return {int(line.removeprefix("got ")) for line in worker.out if line.startswith("got ")}


def adds_up(ledger: Path, handler: str = "orders/say") -> dict[str, int]:
    counts: dict[str, int] = json.loads(ledger.read_text())[handler]
    assert counts["received"] == counts["finished"] + counts["requeued"] + counts["dead"] + counts["lease_lost"]
    return counts
