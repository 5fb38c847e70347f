"""A collector worker that kills itself, once, at the point it is told: ``dying_collector.py SPOOL URL POINT``,
with ``shared`` behind it for one of several, and the least rows that it lands before.

SPOOL may be a URL. Points: ``written`` (the file is durable and has no name yet), ``claimed`` (nor has it one now, but its number
is taken),
``named`` (it has its name, the folder is not synced), ``durable`` (landed, nothing finished), ``never``. The size of each batch
is written to ``batches`` beside the spool, or in the working folder. In a storage there are ``written`` (nothing is put yet),
``claimed`` (of HDFS: the file is there, by a name of its own), ``named`` (the segment is, and its rows are not told),
``durable`` and ``never``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from framework.handler import HandlerSpec
from framework.message import Batch
from framework.spool import Spool, arrow, files, numbered
from framework.spool.hdfs import Hdfs

SPOOL, URL, POINT = sys.argv[1], sys.argv[2], sys.argv[3]
BATCHES = Path("batches") if "://" in SPOOL else Path(SPOOL).parent / "batches"
SHARED = "shared" in sys.argv[4:5]
ROWS = int(sys.argv[5]) if len(sys.argv) > 5 else 3000
landed = 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_rename(self: Hdfs, method: str, name: str, verb: str, content: bytes | None = None, **options: str) -> bytes:
    if verb == "RENAME":
        die()
    return ask(self, method, name, verb, content, **options)


ask = Hdfs._ask


class Dying(Spool):
    def land(self, batch: Batch) -> int:
        global landed  # noqa: PLW0603
        with BATCHES.open("a") as batches:
            batches.write(f"{len(batch)}\n")
        if landed >= ROWS and POINT == "written":
            files._name = lambda *_: die()  # type: ignore[assignment]
            arrow.content_of = lambda *_: die()
        if landed >= ROWS and POINT == "claimed":
            files._name_claimed = lambda *_: die()  # type: ignore[assignment]
            Hdfs._ask = die_at_rename  # type: ignore[method-assign]
        if landed >= ROWS and POINT == "named":
            files.sync_folder = lambda *_: die()
            numbered._tell_rows = lambda *_: die()
        rows = super().land(batch)
        landed += rows
        if landed > ROWS and POINT == "durable":
            die()
        return rows


def main() -> None:
    from framework.engine.supervisor import Supervisor
    from framework.transports import open_transports

    spool = Dying(SPOOL, "worker", shared=SHARED, node_ids="NODE_IDS" in os.environ)
    spec = HandlerSpec(
        topic="orders", channel="archive", function=spool.land, decode=None, concurrency=1, max_in_flight=1000,
        timeout=30, max_attempts=0, batch=1000, linger=0.05,
    )  # fmt: skip
    supervisor = Supervisor([spec], open_transports([URL]), publish=lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: supervisor.stop())
    supervisor.run()


if __name__ == "__main__":
    main()
