"""One flipped bit, anywhere in the log, with the index and without: every message is served, or set aside and counted.

The folder has every kind of record. Each field of each kind is hit, and then bits anywhere: DAMAGE_FLIPS says how many of these.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from framework.nsqd.store import Declaration, Declare, Declared, Entry, Retry, Store, TopicSave, compaction, damage, store
from framework.nsqd.store.damage import Damage, Piece, _repaired
from framework.nsqd.store.log import Found, Log
from framework.nsqd.store.record import HEADER_BYTES
from framework.testing.servers import own_nsqd
from tests.nsqd.layers import wait_for
from tests.nsqd.storing import CHANNEL, TOPIC, declared, everything, lose_index, payload, publish, saved
from tests.nsqd.taking import Run, run

FLIPS = int(os.environ.get("DAMAGE_FLIPS", "12"))
"""Random bits in each test; thousands are for the evening before a release."""
LATER = 1 << 42
"""A due time in the year 2109."""
LONELY, OTHER = 8, 9
FIELDS = {
    "magic": (0, 4), "crc": (4, 8), "length": (8, 12), "topic": (12, 16), "first": (16, 24), "count": (24, 28),
    "ts": (28, 36), "due": (36, 44), "a size": (44, 48), "a body": (48, 49),
}  # fmt: skip


def build(folder: Path) -> None:
    """Three topics in segments of 2 kB: with two channels, without, and with one; some was finished, moved, deferred."""
    opened = Store(folder)
    both = {"c": Declared(CHANNEL, 0), "d": Declared(CHANNEL + 1, 0)}
    opened.append([Declare(TOPIC, Declaration("two", channels=both))])
    opened.append([Declare(LONELY, Declaration("lonely"))])
    first = publish(opened, *(b"old-%d" % at + b"x" * 80 for at in range(10)))[0]
    for at in range(12):
        publish(opened, *(b"done-%d-%d" % (at, of) + b"x" * 90 for of in range(5)))
    end = opened.topics[TOPIC].next
    pending = {first.first + 3: Retry(0, 1), first.first + 4: Retry(LATER, 1)}
    opened.save([TopicSave(TOPIC, end)], [saved(end, inflight=[first.first + 7], put=pending)])
    opened.save(channels=[saved(end)._replace(id=CHANNEL + 1, name="d")])
    for _ in range(30):
        opened.sweep()
    assert len(opened.log.numbers) < 4, "what is unfinished was moved, the rest is gone"
    opened.append([Declare(OTHER, Declaration("other", channels={"e": Declared(CHANNEL + 2, 0)}))])
    for at in range(8):
        publish(opened, *(b"two-%d-%d" % (at, of) + b"y" * 70 for of in range(3)))
        publish(opened, b"lonely-%d" % at + b"z" * 60, topic=LONELY)
        opened.append([Entry(OTHER, payload(b"other-%d" % at), 1, LATER if at % 2 else 0)])
    opened.close()


class Spot(NamedTuple):
    """A record of the folder that is damaged."""

    kind: str
    segment: int
    offset: int
    length: int


def spots(folder: Path) -> list[Spot]:
    log = Log(folder / "log", json.loads((folder / "meta.json").read_text())["salt"])
    found: list[Spot] = []
    for number in log.numbers:
        items = [item for item in log.scan(number) if isinstance(item, Found)]
        for at, item in enumerate(items):
            kind = "messages" if item.batch.count > 1 else "one message" if item.batch.count else "a declaration"
            kind = "moved" if item.batch.moved else "deferred" if item.batch.due else kind
            place = "the first" if not at else "the last" if at == len(items) - 1 else "one"
            place += " of the log's end" if number == log.active else ""
            found.append(Spot(f"{kind}, {place}", number, item.offset, item.length))
    log.close()
    return found


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "healthy"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "SEGMENT_BYTES", 2000)
        patch.setattr(store, "_ROLL_BYTES", 500)
        patch.setattr(compaction, "_SHARE", 0)
        build(folder)
    return folder


def damaged(healthy: Path, folder: Path, segment: int, bit: int, *, indexed: bool) -> None:
    shutil.copytree(healthy, folder)
    path = folder / "log" / f"{segment:010}.log"
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    if not indexed:
        lose_index(folder)


def check(healthy: Path, folder: Path, segment: int, bit: int, *, indexed: bool, baseline: Run) -> None:
    """What holds whatever bit it is."""
    damaged(healthy, folder, segment, bit, indexed=indexed)
    if not indexed:
        first = run(folder, leave=True)
        lost_at_start = first.lost
        assert len([one for one in first.reports if "damaged" in one]) == 1, first.reports
    else:
        lost_at_start = 0
    found = run(folder)
    if not indexed:
        assert found.reports == [], "what was reported once is reported no more"
        assert found.depths == sum(map(len, found.served.values())), "the depth is right from the start"
    lost = found.lost + lost_at_start
    assert found.bodies <= baseline.bodies
    assert len(found.bodies) + lost == len(baseline.bodies), (found.reports, baseline.bodies - found.bodies)
    for channel, bodies in baseline.served.items():
        missing = set(bodies) - set(found.served[channel])
        assert missing <= baseline.bodies - found.bodies, f"{channel} lost what another has"
        assert len(found.served[channel]) == len(set(found.served[channel])), "nothing came twice"
    if lost:
        assert any((folder / "bad").iterdir())
    again = run(folder)
    assert (again.depths, again.bodies, again.reports) == (0, set(), []), "no ghosts, no second report"
    lose_index(folder)
    rebuilt = run(folder, leave=True)
    assert rebuilt.lost == 0, "what is set aside is not reported again"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def baselines(healthy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Run]:
    """What a healthy folder gives, with its index and without."""
    found = {}
    for indexed in (True, False):
        folder = tmp_path_factory.mktemp("baseline") / "copy"
        shutil.copytree(healthy, folder)
        if not indexed:
            lose_index(folder)
        found[indexed] = run(folder)
        assert found[indexed].reports == []
        assert len(found[indexed].bodies) > 35
    return found


@pytest.mark.parametrize("indexed", [True, False], ids=["with the index", "without"])
@pytest.mark.parametrize("field", FIELDS)
def test_a_flipped_bit_of_a_field_costs_its_record_and_is_counted(
    healthy: Path, tmp_path: Path, baselines: dict[bool, Run], field: str, indexed: bool
) -> None:
    chosen = random.Random(field)
    by_kind: dict[str, list[Spot]] = {}
    for spot in spots(healthy):
        by_kind.setdefault(spot.kind, []).append(spot)
    assert {kind.split(",")[0] for kind in by_kind} == {"messages", "one message", "a declaration", "moved", "deferred"}
    for kind, some in by_kind.items():
        spot = chosen.choice(some)
        low, high = FIELDS[field]
        bit = 8 * spot.offset + chosen.randrange(8 * low, 8 * high)
        try:
            check(healthy, tmp_path / "copy", spot.segment, bit, indexed=indexed, baseline=baselines[indexed])
        except BaseException as error:
            error.add_note(f"{kind}: {spot}, bit {bit - 8 * spot.offset}")
            raise


@pytest.mark.parametrize("bit", [63, 62, 40, 2])
@pytest.mark.parametrize("indexed", [True, False], ids=["with the index", "without"])
def test_numbers_that_no_message_of_the_topic_had_are_not_believed(
    healthy: Path, tmp_path: Path, baselines: dict[bool, Run], bit: int, indexed: bool
) -> None:
    moved = [spot for spot in spots(healthy) if spot.kind.startswith("moved")]
    assert moved
    for spot in moved:
        at = 8 * (spot.offset + FIELDS["first"][0] + 7 - bit // 8) + bit % 8  # its number is written with the highest byte first
        check(healthy, tmp_path / "copy", spot.segment, at, indexed=indexed, baseline=baselines[indexed])


@pytest.mark.parametrize("indexed", [True, False], ids=["with the index", "without"])
def test_a_record_that_was_moved_is_known_by_more_than_the_bit_that_says_so(
    healthy: Path, tmp_path: Path, baselines: dict[bool, Run], indexed: bool
) -> None:
    for spot in spots(healthy):
        at = 8 * (spot.offset + FIELDS["count"][0]) + 7
        check(healthy, tmp_path / "copy", spot.segment, at, indexed=indexed, baseline=baselines[indexed])


@pytest.mark.parametrize("indexed", [True, False], ids=["with the index", "without"])
def test_a_flipped_bit_anywhere_costs_its_record_and_is_counted(
    healthy: Path, tmp_path: Path, baselines: dict[bool, Run], indexed: bool
) -> None:
    chosen = random.Random(10)
    segments = sorted((healthy / "log").iterdir())
    for _ in range(FLIPS):
        path = chosen.choices(segments, [one.stat().st_size for one in segments])[0]
        bit = chosen.randrange(8 * path.stat().st_size)
        try:
            check(healthy, tmp_path / "copy", int(path.stem), bit, indexed=indexed, baseline=baselines[indexed])
        except BaseException as error:
            error.add_note(f"segment {path.stem}, bit {bit % 8} of byte {bit // 8}")
            raise


def test_the_depth_is_right_once_what_was_moved_is_read_with_a_lost_index(
    folder: Path, talk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_SHARE", 0)
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    (batch,) = publish(opened, *(b"%d" % at + b"x" * 90 for at in range(100)))
    opened._roll()  # its head has the channel at the first of them
    opened.save([TopicSave(TOPIC, batch.end)], [saved(batch.end, put={batch.first + at: Retry(0, 1) for at in (50, 99)})])
    opened._compact()
    assert opened.log.numbers == [2]
    opened.close()
    (folder / "index.db").unlink()
    server = own_nsqd(folder)
    server.start()
    try:
        client = talk(server)
        client.send(b"SUB t7 c\nRDY 100\n")
        found = client.get(2)
        assert sorted((attempts, body[:2]) for _, attempts, body in found) == [(1, b"50"), (1, b"99")]
        client.send(b"".join(b"FIN " + message_id + b"\n" for message_id, _, _ in found))
        wait_for(lambda: server.channel_stats("t7", "c")["in_flight_count"] == 0)
        assert server.channel_stats("t7", "c")["depth"] == 0
    finally:
        server.kill()


@pytest.mark.parametrize("indexed", [True, False], ids=["with the index", "without it"])
@pytest.mark.parametrize("zeros", [1001, 4000, 4001])
def test_zeros_that_a_power_cut_left_at_the_end_do_not_hold_up_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zeros: int, indexed: bool
) -> None:
    """Each four of them are a size of 0: so many of them were tried with each bit of each flipped, for minutes."""
    folder = tmp_path / "store"
    opened = Store(folder)
    opened.append([declared(TOPIC, "c")])
    publish(opened, b"a", b"b")
    opened.close()
    log = sorted((folder / "log").iterdir())[-1]
    end = log.stat().st_size
    with log.open("ab") as file:
        file.write(bytes(zeros))
    if not indexed:
        lose_index(folder)
    looks = []
    walk = damage._sizes

    def counted(*arguments: Any) -> tuple[list[int], bool]:
        looks.append(arguments)
        assert len(looks) < 200, "it looks at every size for every bit"
        return walk(*arguments)

    monkeypatch.setattr(damage, "_sizes", counted)
    again = Store(folder)
    assert everything(again) == [b"a", b"b"]
    assert log.stat().st_size == end
    assert "never confirmed: cut off" in " ".join(again.reports)
    again.close()


NEW, LYING = 9, 1 << 31


@pytest.mark.parametrize(("topic", "first", "more"), [(NEW, 0, True), (NEW, 0, False), (NEW, LYING, True), (LYING, 0, True)])
def test_a_topic_that_was_declared_empty_has_had_what_was_in_its_first_record(topic: int, first: int, more: bool) -> None:
    """Its declaration says that its numbers begin at 0, whatever the header of the damaged record says."""
    numbers = damage.Numbers()
    numbers.met(NEW, 0, 0)
    numbers.damages.append(lost := damage.Damage(1, 100, 500, damage.Piece(0, 500, False, topic, first, 3, 3, False)))
    if more:
        numbers.met(NEW, 3, 5)
    numbers.finish()
    assert (lost.lost, lost.unknown) == ([(NEW, 0, 3)], 0)


def test_what_a_damaged_piece_may_still_have_had_is_what_is_not_known_of_it() -> None:
    piece = Piece(0, HEADER_BYTES + 50, whole=False)
    damage = Damage(1, 0, piece.length, piece)
    assert damage.room == 10, "five bytes are a message: its size, and one of its body"
    damage.lost += [(1, 10, 13), (2, 0, 2)]
    assert damage.room == 5


def test_sizes_of_which_one_has_a_wrong_bit_are_found_again_and_others_are_not() -> None:
    bodies = [b"a" * 7, b"bc", b"d" * 30]
    payload = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    wrong = payload[:11] + (2 ^ 1 << 20).to_bytes(4, "big") + payload[15:]
    before = [7, 2 ^ 1 << 20]
    assert _repaired(wrong, 3, before) == ([7, 2, 30], True)
    assert _repaired(wrong, 4, before) == (before, False)
