"""How much of an answer is read, which call a record is of, and what of a record is shown: each by itself."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from greenlet import getcurrent

from framework.message import Message
from framework.observe import answers, hublog, logfile, stderr
from framework.observe import logging as of_logging
from framework.observe.answers import beginning_of
from framework.observe.call import bind_records, current, itself, site
from framework.observe.logging import JsonFormatter, LineFormatter, extra_of, scrubbed

# --- answers -----------------------------------------------------------------------------------------------


class Raw:
    """An answer of urllib3, of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.closed = False
        self.ended = ""

    def read(self, most: int, *, decode_content: bool) -> bytes:
        assert decode_content
        came, self.left = min(most, self.left), max(0, self.left - most)
        self.closed = not self.left
        return b"x" * came

    def close(self) -> None:
        self.ended = "closed"

    def release_conn(self) -> None:
        self.ended = "used again"


@pytest.mark.parametrize(
    ("size", "ended"),
    [
        (0, "used again"),
        (answers.MOST, "used again"),
        (answers.MOST + 1, "closed"),
        (answers.MOST + 2, "closed"),
        (10**9, "closed"),
    ],
)
def test_a_connection_is_used_again_only_if_the_answer_was_read_to_its_end(size: int, ended: str) -> None:
    raw = Raw(size)
    assert len(beginning_of(raw)) == min(size, answers.MOST)
    assert raw.ended == ended


def test_an_answer_that_is_shorter_than_it_says_is_not_taken_for_whole() -> None:
    raw = Raw(10)
    raw.read = lambda most, decode_content: b"x" * 5  # type: ignore[method-assign]
    assert beginning_of(raw) == b"x" * 5
    assert raw.ended == "closed"


# --- calls -------------------------------------------------------------------------------------------------


class Slot:
    """A ``Site``."""

    def __init__(self, job: Any, greenlet: Any = None, known_as: Any = itself) -> None:
        self.name, self.job, self.greenlet, self.known_as = "orders/billing", job, greenlet, known_as


def message(number: int) -> Message:
    origin: Any = SimpleNamespace(topic="orders", channel="billing", node="a:4150")
    return Message(b"%d" % number, 0, 3, b"x", origin)


@pytest.fixture
def here() -> Iterator[Any]:
    """Has this code run in a call of the given slot."""
    tokens: list[Any] = []
    yield lambda slot: tokens.append(site.set(slot))
    for token in reversed(tokens):
        site.reset(token)


HANDLER = {"handler": "orders/billing", "topic": "orders", "channel": "billing"}
ONE = {**HANDLER, "id": "1", "attempt": 3, "node": "a:4150"}


def test_code_knows_which_call_it_is_in(here: Any) -> None:
    assert current() is None
    for job, about in (
        (message(1), ONE), ([message(1), message(2)], {**ONE, "messages": 2}), ((message(1),), {**ONE, "messages": 1}),
        (SimpleNamespace(messages=[message(1), message(2), message(3)]), {**ONE, "messages": 3}), (None, HANDLER),
    ):  # fmt: skip
        here(Slot(job))
        assert current() == about
    here(Slot(message(1), known_as=lambda one: message(7)))
    assert current() == {**ONE, "id": "7"}, "as the handler knows it"


def test_what_a_handler_has_started_knows_the_handler_alone(here: Any) -> None:
    """It may outlive the call."""
    here(Slot(message(1), getcurrent()))
    assert current() == ONE
    found: list[Any] = []

    def grandchild() -> None:
        gevent.spawn(lambda: found.append(current())).join()

    gevent.spawn(lambda: found.append(current())).join()
    gevent.spawn(grandchild).join()
    assert found == [HANDLER, HANDLER]


def test_records_know_their_call_and_are_bound_once(here: Any) -> None:
    before = logging.getLogRecordFactory()
    try:
        bind_records()
        bound = logging.getLogRecordFactory()
        bind_records()
        assert logging.getLogRecordFactory() is bound
        assert not hasattr(bound("a", 20, "f", 1, "words", (), None), "call")
        here(Slot(message(1)))
        record = bound("a", 20, "f", 1, "words", (), None)
        assert record.call == ONE  # type: ignore[attr-defined]
    finally:
        logging.setLogRecordFactory(before)


# --- lines -------------------------------------------------------------------------------------------------


def record(**more: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "shop", "levelname": "INFO", "levelno": 20, "msg": "words", **more})


def test_an_error_that_was_never_raised_is_shown_too() -> None:
    error = ValueError("odd")
    shown = LineFormatter().format(record(exc_info=(ValueError, error, None)))
    assert shown == "INFO shop words\nINFO shop ValueError: odd"
    assert LineFormatter().format(record(exc_info=(None, None, None))) == "INFO shop words"
    assert LineFormatter().format(record(exc_text="as it was", exc_info=(ValueError, error, None))).endswith("as it was")


def test_json_has_all_that_is_known_and_what_extra_says_does_not_replace_it() -> None:
    made = json.loads(JsonFormatter().format(record(
        created=1_700_000_000.1239, process=7, call=ONE, order=3, id="evil", at={"url": "nsq://u:p@h/"}, odd=object,
    )))  # fmt: skip
    assert made == {
        "time": "2023-11-14T22:13:20.123Z", "level": "INFO", "process": 7, "logger": "shop", "message": "words", **ONE,
        "order": 3, "at": {"url": "nsq://h/"}, "odd": "<class 'object'>",
    }  # fmt: skip
    assert extra_of(record(order=3, call=ONE)) == {"order": 3}
    assert scrubbed([("nsq://u:p@h/", {"nsq://u:p@h/": 1}), 2]) == [["nsq://h/", {"nsq://h/": 1}], 2]


@pytest.mark.parametrize("frames", ["own", "all"])
def test_the_frames_of_the_framework_are_shown_where_that_is_asked_for(frames: str) -> None:
    try:
        logfile._open(logfile.Path("/none/such"))
    except OSError:
        shown = LineFormatter(frames=frames).format(record(exc_info=sys.exc_info()))
    assert ("in _open" in shown) is (frames == "all")
    assert "in test_the_frames" in shown


def test_a_setup_takes_the_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    root, said = logging.getLogger(), []
    before, level = root.handlers[:], root.level
    monkeypatch.setattr(of_logging, "bind_records", lambda: None)
    monkeypatch.setattr(logfile, "write_to", said.append)
    monkeypatch.setattr(stderr, "say_as", said.append)
    root.handlers[:] = []  # pytest's are closed by whoever takes their place
    try:
        of_logging.setup("info")
        of_logging.setup("warning", form="json", file=logfile.Path("a.log"))
        [handler] = root.handlers
        assert (root.level, type(handler.formatter)) == (logging.WARNING, JsonFormatter)
        assert said[1] == logfile.Path("a.log")
        assert json.loads(said[2]("lost"))["message"] == "lost"
        of_logging.setup("debug", timed=True, frames="all")
        [handler] = root.handlers
        assert isinstance(handler.formatter, LineFormatter)
        assert (handler.formatter._timed, handler.formatter._all) == (True, True)
        assert said[3]("lost").endswith(" WARNING framework.observe.stderr lost\n")
    finally:
        root.handlers[:] = before
        root.setLevel(level)


# --- queues ------------------------------------------------------------------------------------------------


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> hublog._Queue:
    """Has nothing written until somebody does."""
    monkeypatch.setattr(hublog, "SIZE", 4)
    monkeypatch.setattr(hublog.gevent, "spawn", lambda work: SimpleNamespace(join=joined.append))
    return hublog._Queue()


joined: list[float] = []


def test_what_is_over_the_size_is_dropped_and_said_when_half_is_written(
    queue: hublog._Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, int]] = []

    def write(one: logging.LogRecord) -> None:
        written.append((one.getMessage(), len(queue.waiting)))
        if one.getMessage() == "1":
            queue.put(record(msg="dropped, as others were"))

    monkeypatch.setattr(hublog, "_write", write)
    for words in ("1", "2", "3", "4", "dropped", "dropped"):
        queue.put(record(msg=words))
    assert len(queue.waiting) == 4
    queue._write_all()
    lost = "3 log records were dropped: they came faster than they could be written"
    assert written == [("1", 4), ("2", 3), ("3", 3), ("4", 2), (lost, 1)]
    queue.put(record(msg="taken again"))
    assert len(queue.waiting) == 1


def test_who_waits_for_a_log_that_does_not_come_back_waits_once(queue: hublog._Queue) -> None:
    joined.clear()
    assert queue.flush(2.0)
    assert joined == [], "nothing waits"
    queue.put(record())
    assert [queue.flush(2.0), queue.flush(2.0)] == [False, False]
    assert joined == [2.0, 0]
    queue.waiting.clear()
    assert queue.flush(2.0)
    queue.put(record())
    queue.flush(2.0)
    assert joined == [2.0, 0, 0, 2.0]


def test_what_is_kept_for_later_is_as_it_was_then_and_plain_values_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    log, orders = hublog.get("shop"), ["a"]
    kept = log._record(logging.INFO, "%s of %d", ("x", 3), 1)
    assert (kept.msg, kept.args, kept.funcName) == ("%s of %d", ("x", 3), sys._getframe().f_code.co_name)
    changing = log._record(logging.INFO, "orders %s", (orders,), 1)
    orders.append("b")
    assert (changing.msg, changing.args) == ("orders ['a']", None)
    for given in (True, ValueError("x")):
        try:
            raise KeyError("y")
        except KeyError:
            found = log._record(logging.INFO, "x", (), 1, exc_info=given).exc_info
        assert found is not None
        assert found[0] is (KeyError if given is True else ValueError)
    assert not log._record(logging.INFO, "x", (), 1, exc_info=False).exc_info


@pytest.mark.parametrize(("error", "words"), [(OSError(28, "No space"), "No space"), (OSError("odd"), "odd"), (None, "")])
def test_why_a_log_could_not_be_written_is_said(error: OSError | None, words: str) -> None:
    assert stderr._words(error) == words
