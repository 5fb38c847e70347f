"""What one client publishes is gathered and confirmed together, cut into records, and refused beyond the quota of its topic."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from framework.nsqd import payloads, pertopic
from framework.nsqd import publishing as module
from framework.nsqd.arguments import message_id, name, not_fatal, topic_name
from framework.nsqd.bodies import Refused
from framework.nsqd.journal import NotStored, QuotaReached
from framework.nsqd.payloads import TooLong, lines
from framework.nsqd.pertopic import PerTopic
from framework.nsqd.publishing import Publishing
from framework.nsqd.quotas import Quotas
from framework.nsqd.store import Entry, record
from framework.transports.nsq.wire import FRAME_RESPONSE, OK, encode_frame

CONFIRMED = encode_frame(FRAME_RESPONSE, OK)


def sized(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


# --- gathering -----------------------------------------------------------------------------------------------------------


class Case:
    """A client's publishes, on a broker that notes what it is given."""

    def __init__(self) -> None:
        self.stored: list[list[Entry]] = []
        self.out: list[bytes] = []
        self.error: Exception | None = None
        self.waited = 0
        self.settled = 0
        self.topics = {name: SimpleNamespace(id=at, name=name) for at, name in enumerate(("orders", "news"))}
        broker: Any = SimpleNamespace(topic=self.topics.__getitem__, publish=self._publish)
        outgoing: Any = SimpleNamespace(write=self.out.extend)
        self.publishing = Publishing(broker, self._settle, outgoing)

    def _settle(self) -> None:
        self.settled += 1
        self.publishing.commit()

    def _publish(self, entries: list[tuple[Any, Entry]]) -> Any:
        self.stored.append([entry for _, entry in entries])
        return None if self.stored[-1][0].due else SimpleNamespace(wait=self._wait)

    def _wait(self) -> None:
        self.waited += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def case() -> Case:
    return Case()


def test_publishes_are_stored_in_one_commit_and_each_is_confirmed(case: Case) -> None:
    case.publishing.add("PUB", "orders", [(sized(b"a"), 1)])
    case.publishing.add("PUB", "news", [(sized(b"b", b"c"), 2), (sized(b"d"), 1)], publishes=3)
    case.publishing.add("PUB", "orders", [(sized(b"e"), 1)])
    assert (case.stored, case.out, case.publishing.counts) == ([], [], {})
    case.publishing.commit()
    wanted = [Entry(0, sized(b"a"), 1), Entry(1, sized(b"b", b"c"), 2), Entry(1, sized(b"d"), 1), Entry(0, sized(b"e"), 1)]
    assert case.stored == [wanted]
    assert (case.out, case.publishing.counts, case.settled) == ([CONFIRMED * 5], {"orders": 2, "news": 3}, 0)
    case.publishing.commit()
    assert (len(case.stored), len(case.out)) == (1, 1)
    case.publishing.add("PUB", "orders", [(sized(b"f"), 1)])
    case.publishing.commit()
    assert (case.out[1:], case.publishing.counts["orders"], case.waited) == ([CONFIRMED], 3, 2)


def test_another_command_waits_for_those_before_it(case: Case) -> None:
    case.publishing.add("PUB", "orders", [(sized(b"a"), 1)])
    case.publishing.add("DPUB", "orders", [(sized(b"b"), 1)], 77)
    assert (case.settled, case.stored) == (1, [[Entry(0, sized(b"a"), 1)]])
    case.publishing.commit()
    assert (case.stored[1:], case.waited) == ([[Entry(0, sized(b"b"), 1, 77)]], 1)
    assert case.out == [CONFIRMED] * 2


@pytest.mark.parametrize(("limit", "publishes"), [("_MOST_AT_ONCE", 1), ("_MOST_AT_ONCE", 3), ("_MOST_PAYLOADS", 1)])
def test_so_many_are_stored_before_more_are_taken(
    case: Case, monkeypatch: pytest.MonkeyPatch, limit: str, publishes: int
) -> None:
    monkeypatch.setattr(module, limit, 3)
    settled = []
    for _ in range(4):
        case.publishing.add("PUB", "orders", [(sized(b"a"), 1)], publishes=publishes)
        settled.append(case.settled)
    assert settled == ([0, 1, 2, 3] if publishes > 1 else [0, 0, 0, 1])


def test_what_could_not_be_stored_is_refused_in_the_words_of_its_command_and_not_counted(case: Case) -> None:
    case.error = NotStored("exiting")
    case.publishing.add("MPUB", "orders", [(sized(b"a"), 1)])
    with pytest.raises(Refused, match=r"^E_MPUB_FAILED MPUB failed exiting$") as caught:
        case.publishing.commit()
    assert caught.value.fatal
    assert (case.out, case.publishing.counts) == ([], {})


# --- lines and names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [0, 1, 5, 1000])
@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_each_line_that_is_not_empty_is_a_message(monkeypatch: pytest.MonkeyPatch, chunk: int, end: bytes) -> None:
    monkeypatch.setattr(payloads, "_LINES_BYTES", chunk)
    bodies = [b"a", b"bc", b"d" * 9, b"e\r", b" "]
    found = lines(b"\n" + b"\n".join(bodies) + end, 9)
    assert b"".join(payload for payload, _ in found) == sized(*bodies)
    assert sum(count for _, count in found) == 5
    if chunk == 1000:
        assert len(found) == 1
    assert lines(end, 9) == []
    with pytest.raises(TooLong):
        lines(b"a\n" + b"d" * 10 + end, 9)


def test_more_messages_than_one_record_holds_are_cut() -> None:
    payload = sized(*[b"m"] * (record.MAX_RECORD_MESSAGES + 1))
    assert [count for _, count in payloads.cut(payload, record.MAX_RECORD_MESSAGES + 1)] == [record.MAX_RECORD_MESSAGES, 1]


def test_names_and_ids_are_those_that_nsqd_takes() -> None:
    assert name(b"orders#ephemeral", "E_BAD_TOPIC", "SUB topic name") == "orders#ephemeral"
    assert topic_name("PUB", [b"PUB", b"orders"], 2) == "orders"
    assert message_id("FIN", [b"FIN", b"0" * 16], 2) == b"0" * 16
    assert str(not_fatal("FIN", b"\xff", "why")) == "E_FIN_FAILED FIN \udcff failed why"
    assert not not_fatal("FIN", b"1", "why").fatal
    for refused, words in (
        (lambda: name(b"a b", "E_BAD_TOPIC", "SUB topic name"), 'E_BAD_TOPIC SUB topic name "a b" is not valid'),
        (lambda: topic_name("PUB", [b"PUB"], 2), "E_INVALID PUB insufficient number of parameters"),
        (lambda: topic_name("SUB", [b"SUB", b"orders"], 3), "E_INVALID SUB insufficient number of parameters"),
        (lambda: topic_name("PUB", [b"PUB", b""], 2), 'E_BAD_TOPIC PUB topic name "" is not valid'),
        (lambda: message_id("FIN", [b"FIN"], 2), "E_INVALID FIN insufficient number of params"),
        (lambda: message_id("REQ", [b"REQ", b"0" * 16], 3), "E_INVALID REQ insufficient number of params"),
        (lambda: message_id("FIN", [b"FIN", b"0" * 15], 2), "E_INVALID invalid message ID"),
        (lambda: message_id("FIN", [b"FIN", b"0" * 17], 2), "E_INVALID invalid message ID"),
    ):
        with pytest.raises(Refused) as caught:
            refused()
        assert (str(caught.value), caught.value.fatal) == (words, True)


# --- quotas --------------------------------------------------------------------------------------------------------------


class Topic:
    """As far as a quota looks at one."""

    def __init__(self, name: str, unfinished: int = 0, *, ephemeral: bool = False) -> None:
        self.name = name
        self.unfinished = unfinished
        self.ephemeral = ephemeral
        self.refused_count = 0


def entry(count: int = 1) -> Entry:
    return Entry(0, b"", count)


class Group:
    """Of publishes that are being written."""

    def __init__(self) -> None:
        self.over = False
        self.done = SimpleNamespace(is_set=lambda: self.over)


def test_a_topic_takes_as_many_as_it_may_have_with_what_is_being_written() -> None:
    quotas, topic, group = Quotas(PerTopic([("orders", 5)])), Topic("orders", 2), Group()
    quotas.check([(topic, entry(2)), (topic, entry(1))])  # type: ignore[list-item]
    with pytest.raises(QuotaReached, match="topic 'orders' may have 5 unfinished messages"):
        quotas.check([(topic, entry(2)), (topic, entry(2))])  # type: ignore[list-item]
    assert topic.refused_count == 4
    quotas.taken(group, [(topic, entry(1)), (topic, entry(1))])  # type: ignore[arg-type, list-item]
    quotas.check([(topic, entry(1))])  # type: ignore[list-item]
    with pytest.raises(QuotaReached):
        quotas.check([(topic, entry(2))])  # type: ignore[list-item]
    group.over, topic.unfinished = True, 4
    quotas.check([(topic, entry(1))])  # type: ignore[list-item]
    assert topic.refused_count == 6


def test_all_of_a_publish_is_refused_where_one_of_its_topics_has_no_room_and_others_are_left_alone() -> None:
    quotas = Quotas(PerTopic([("orders", 1), ("gone#ephemeral", 1)]))
    full, other, fleeting = Topic("orders", 1), Topic("news", 1000), Topic("gone#ephemeral", ephemeral=True)
    with pytest.raises(QuotaReached):
        quotas.check([(other, entry(3)), (full, entry())])  # type: ignore[list-item]
    assert (full.refused_count, other.refused_count) == (1, 3)
    quotas.check([(other, entry(1 << 20))])  # type: ignore[list-item]
    quotas.taken(Group(), [(other, entry()), (fleeting, entry())])  # type: ignore[arg-type, list-item]
    quotas.check([(fleeting, entry())])  # type: ignore[list-item]
    assert bool(quotas)
    assert not Quotas(PerTopic([]))


def test_the_limit_of_a_topic_is_its_own_or_that_of_all_others_and_the_last_that_is_set() -> None:
    limits = PerTopic([("orders", 1), ("*", 2), ("orders", 3)])
    assert (limits.of("orders"), limits.of("news"), PerTopic([("orders", 1)]).of("news")) == (3, 2, None)
    parse = pertopic.setting(int)
    assert (parse("orders=5"), parse("*=7")) == (("orders", 5), ("*", 7))
    for text in ("orders", "=5", "or ders=5", "**=5"):
        with pytest.raises(ValueError, match="it is not TOPIC=LIMIT"):
            parse(text)
