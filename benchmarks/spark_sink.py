"""Rows of 200 bytes from Spark to a real nsqd by ``format("nsq")``, beside a bare MPUB loop that is given the same rows.

The cases take turns, each in every round, in one session of two cores with two tasks, after a round that is not counted:

- ours, and ours with keys (``headers=true``: an envelope of 111 bytes around each body), made of the rows or from a column;
- bare: a Python sink that does what must be done, on a blocking socket: 500 bodies to an MPUB, send, wait for OK;
- bare, envelopes: the same, with rows that Spark made as long as our envelopes: as many bytes to nsqd, and no keys to make;
- bare, keys: the same, and each key is made by hand, of the row's BLAKE2, and put before it: no more is done than that;
- nowhere: a Python sink that takes the rows and drops them, which is what Spark itself costs.

Rates are of the clock; CPU is that of the JVM and of all Python processes, without nsqd's. Java is needed.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from benchmarks import measure
from benchmarks.spark_session import cpu, started

TOPIC = "bench#ephemeral"
MPUB = 500
ENVELOPE = 'workers-headers/1\\n{"idempotency-key":"'
CASES = ("ours", "ours, keys", "ours, key column", "bare", "bare, envelopes", "bare, keys", "nowhere")
_BARE = ("bare", "bare, envelopes", "bare, keys")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    found: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder, started(Path(folder)) as session, measure.fresh_nsqd() as nsqd:
        session.dataSource.register(Bare)
        for number in range(options.rounds + 1):
            for case in CASES:
                rows = _rows(session, options.rows, case)
                began, used = time.monotonic(), cpu()
                _write(rows, case, nsqd.address)
                if number:
                    found[case].append((time.monotonic() - began, cpu() - used))
    print(f"{options.rows:,} rows of 200 B, 2 tasks, medians of {options.rounds} rounds, load {os.getloadavg()[0]:.0f}")
    beside = "".join(f"   of {case}: clock   CPU" for case in _BARE)
    print(f"{'sink':<16} k rows/s   CPU s{beside}   CPU beyond Spark's own, us a row")
    idle = [used for _, used in found["nowhere"]]
    for case in CASES:
        seconds, used = (statistics.median(one[i] for one in found[case]) for i in (0, 1))
        ratios = "".join(
            f"{_ratio(found[bare], found[case], 0):{len(bare) + 13}.2f}{_ratio(found[bare], found[case], 1):6.2f}"
            for bare in _BARE
        )
        own = statistics.median(one[1] - none for one, none in zip(found[case], idle, strict=True)) / options.rows * 1e6
        print(f"{case:<16} {options.rows / seconds / 1000:8.0f} {used:7.2f}{ratios}{own:35.2f}", flush=True)


def _ratio(bare: Sequence[tuple[float, float]], ours: Sequence[tuple[float, float]], which: int) -> float:
    """How fast ``ours`` is as a part of ``bare``, by the clock (0) or by CPU (1)."""
    return statistics.median(one[which] / our[which] for one, our in zip(bare, ours, strict=True))


def _rows(session: Any, count: int, case: str) -> Any:
    value = "rpad(cast(id AS string), 200, 'x')"
    if case == "bare, envelopes":
        before = f"{ENVELOPE}{'0' * 36}-0-0-{'0' * 18}"
        value = f"concat('{before}', lpad(cast(id AS string), 6, '0'), '\"}}\\n', {value})"
    columns = [f"{value} AS value", *(["concat('order-', id) AS key"] if case == "ours, key column" else [])]
    return session.range(0, count, 1, 2).selectExpr(*columns)


def _write(rows: Any, case: str, address: str) -> None:
    if case.startswith("ours"):
        sink = rows.write.format("nsq").mode("append").option("topic", TOPIC)
        sink.option("broker", f"nsq://{address}" + ("?headers=true" if "key" in case else "")).save()
    else:
        sink = rows.write.format("bare").mode("append").option("keys", case == "bare, keys")
        sink.option("address", address if case in _BARE else "").save()


class Bare(DataSource):
    """A sink without a framework."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return BareWriter(self.options["address"], keys=self.options["keys"] == "true")


class BareWriter(DataSourceArrowWriter):
    def __init__(self, address: str, *, keys: bool) -> None:
        self._address = address
        self._keys = keys

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        sock = _connected(self._address) if self._address else None
        for batch in iterator:
            if sock is None:
                continue
            bodies = batch.column(0).cast(pa.binary()).to_pylist()
            if self._keys:
                bodies = [_keyed(body) for body in bodies]
            for first in range(0, len(bodies), MPUB):
                _mpub(sock, bodies[first : first + MPUB])
        return WriterCommitMessage()


def _keyed(body: bytes) -> bytes:
    key = blake2b(body, digest_size=12).hexdigest().encode()
    return b'workers-headers/1\n{"idempotency-key":"%b-0-0-%b"}\n%b' % (b"0" * 36, key, body)


def _connected(address: str) -> socket.socket:
    host, port = address.split(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(b"  V2")
    return sock


def _mpub(sock: socket.socket, bodies: list[bytes]) -> None:
    framed = b"".join([part for body in bodies for part in (struct.pack(">i", len(body)), body)])
    sock.sendall(b"MPUB %b\n%b%b" % (TOPIC.encode(), struct.pack(">ii", len(framed) + 4, len(bodies)), framed))
    answer = b""
    while len(answer) < 10:
        answer += sock.recv(4096)
    if answer[8:10] != b"OK":
        raise RuntimeError(answer)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_sink", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
