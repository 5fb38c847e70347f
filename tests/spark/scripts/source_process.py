"""As much of Spark's process beside the driver as a stop needs: ``source_process.py SPOOL ADDRESS``.

Spark stops a query by SIGTERM while this process waits for its next request. It prints a line when its collector begins to stop.
"""

from __future__ import annotations

import sys

from pyspark.sql.streaming.datasource import ReadAllAvailable

from framework.spark import collector, options
from framework.spark.reader import NsqStreamReader


class Told(collector.Collector):
    def stop(self) -> None:
        print("stopping", flush=True)
        super().stop()


def main(folder: str, address: str) -> None:
    given = {"spoolDir": folder, "topic": "orders", "channel": "archive", "nsqdTcpAddresses": address, "segmentLinger": "20s"}
    reader = NsqStreamReader(options.stream_read(given))
    collector.Collector = Told  # type: ignore[misc]
    try:
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        sys.stdin.read()
    finally:
        reader.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
