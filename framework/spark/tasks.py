"""What a task reads, and how. It runs in the executors, on what the reader beside the driver has planned."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from framework.spark.advice import Advice
from framework.spark.garbage import spare_what_is_loaded
from framework.spark.offsets import Offset, Span, partitions_for, split
from framework.spark.options import ReadOptions
from framework.spark.rows import rows_of
from framework.spool import SpoolError
from framework.spool.arrow import Damaged
from framework.spool.faults import in_words
from framework.spool.root import epoch
from framework.spool.segment import cut, steady
from framework.spool.storage import Location


@dataclass
class SpoolPartition(InputPartition):
    """The rows of one task, and the spool that they are in."""

    root: Location
    epoch: str
    spans: list[Span]
    lives: Mapping[str, str]
    """Collector -> which life of its folder was planned, of those that have rows here."""


def planned(root: Location, every: Sequence[Span], offset: Offset) -> list[InputPartition]:
    rows = sum(span.rows for span in every)
    if rows == 0:
        return []
    return [_partition(root, some, offset) for some in split(every, partitions_for(rows, offset))]


def _partition(root: Location, some: list[Span], offset: Offset) -> SpoolPartition:
    names = {span.collector for span in some}
    return SpoolPartition(root, offset.epoch, some, {name: life for name, life in offset.lives.items() if name in names})


def read_rows(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of one task. Spark hands a plain InputPartition to a batch read that has none."""
    if not isinstance(partition, SpoolPartition):
        return
    spare_what_is_loaded()
    with in_words(partition.root):
        try:
            yield from _rows_of_task(partition, options)
        except Damaged as error:
            raise SpoolError(f"{error.what}; put a whole copy in its place, or remove it and {options.advice.lost}") from error


def _rows_of_task(partition: SpoolPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    _check_shared(partition, options.advice)
    anew = _begun_anew(partition)
    for span in partition.spans:
        try:
            if span.collector in anew:
                raise FileNotFoundError
            yield from rows_of(span, options.columns)
        except FileNotFoundError:
            if span.collector not in anew and (joined := _joined(partition.root, span)) is not None:
                yield from rows_of(joined, options.columns)
            elif options.fail_on_data_loss:
                raise SpoolError(
                    f"spool segment {span.segment.path} was planned and is gone: another query on this spool deletes what it "
                    f"has committed (retention=commit), or someone removed it: put it back, or {options.advice.lost}"
                ) from None


def _begun_anew(partition: SpoolPartition) -> set[str]:
    """The collectors whose folders were emptied since the plan: what has the names of its segments has other rows."""
    return {name for name, life in partition.lives.items() if epoch(partition.root / name) not in (life, None)}


def _joined(root: Location, span: Span) -> Span | None:
    """The same rows in the run that holds them, where one was made since the plan."""
    if span.segment.first is not None:
        return None
    number = span.segment.number
    for found in cut(steady(root / span.collector), number):
        if found.number == number and found.path != span.segment.path:
            return span._replace(segment=found)
    return None


def _check_shared(partition: SpoolPartition, advice: Advice) -> None:
    """Another host may have nothing in this folder, or a spool of its own whose segments have the same names."""
    seen = epoch(partition.root)
    if seen != partition.epoch:
        what = "no spool" if seen is None else "another spool"
        raise SpoolError(
            f"spool {partition.root}: the executor on {socket.gethostname()} sees {what} there: "
            f"{advice.spool} must be one folder that the driver and every executor share"
        )
