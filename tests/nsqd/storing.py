"""What the tests of the storage share: a store in a folder of its own, what is put into it and what is found there."""

from __future__ import annotations

import shutil
import sqlite3
import struct
from pathlib import Path

from framework.nsqd.store import (
    Batch,
    ChannelSave,
    Declaration,
    Declare,
    Declared,
    Entry,
    Store,
    record,
)

TOPIC, CHANNEL = 7, 70


def payload(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def declared(topic: int = TOPIC, *channels: str) -> Declare:
    return Declare(
        topic, Declaration(f"t{topic}", channels={name: Declared(CHANNEL + at, 0) for at, name in enumerate(channels)})
    )


def publish(opened: Store, *bodies: bytes, topic: int = TOPIC) -> list[Batch]:
    return opened.append([Entry(topic, payload(*bodies), len(bodies))])


def everything(opened: Store, topic: int = TOPIC, start: int = 0) -> list[bytes]:
    """All bodies of the topic from the number ``start`` on, read as a channel reads them."""
    found: list[bytes] = []
    seq = start
    while batches := opened.read(topic, seq, 1 << 20):
        for batch in batches:
            found += record.bodies(batch.payload, batch.count)
        seq = batches[-1].end
    return found


def saved(cursor: int, **changes: object) -> ChannelSave:
    fields = {"inflight": (), "put": {}, "drop": ()} | changes
    return ChannelSave(CHANNEL, TOPIC, "c", cursor, **fields)  # type: ignore[arg-type]


def killed(opened: Store, folder: Path, copy: Path) -> Path:
    """The folder as a kill -9 would leave it now."""
    shutil.copytree(folder, copy)
    return copy


def segment(folder: Path, number: int = 1) -> Path:
    return folder / "log" / f"{number:010}.log"


def changed_index(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "index.db") as db:
        db.execute(statement)


def lose_index(folder: Path) -> None:
    for path in folder.glob("index.db*"):
        path.unlink()


def flip(path: Path, at: int) -> None:
    """Damage one bit of the byte at ``at``."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
