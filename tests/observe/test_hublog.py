"""A record that is made on a hub is written elsewhere, in its order, and never waited for there."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import gevent.event
import pytest

import framework
from framework.observe import hublog


class Waiting(logging.Handler):
    """Each record takes a turn of the hub, and more."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = None  # pytest is not patched: the real one would hold up the whole thread
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        gevent.sleep(0.001)
        self.records.append(record)

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def written() -> Iterator[Waiting]:
    handler, logger = Waiting(), logging.getLogger("hublog")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield handler
    logger.removeHandler(handler)


log = hublog.get("hublog")


def on_hub(work: Callable[[], object]) -> None:
    """Raises what ``work`` raised."""
    done: list[BaseException | None] = []

    def call() -> None:
        try:
            work()
        except BaseException as error:
            done.append(error)
        else:
            done.append(None)

    gevent.get_hub().loop.run_callback(call)
    while not done:
        gevent.sleep(0)
    if done[0] is not None:
        raise done[0]


def test_on_the_hub_it_is_written_later_and_elsewhere_at_once(written: Waiting) -> None:
    log.info("from a %s", "greenlet")
    assert written.lines == ["from a greenlet"]
    on_hub(lambda: [log.warning("%d from the hub", n) for n in range(3)])
    log.info("after them")
    hublog.flush()
    assert written.lines == ["from a greenlet", "0 from the hub", "1 from the hub", "2 from the hub", "after them"]


@pytest.mark.parametrize("broken", [True, False])
def test_what_is_left_at_the_end_of_a_process_is_written_and_breaks_nothing(
    written: Waiting, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_hub(lambda: log.warning("the last word"))
    with monkeypatch.context() as patched:
        if broken:
            patched.setattr(hublog, "_get_hub", lambda: 1 // 0)
        hublog._flush_at_exit()
    if broken:
        hublog.flush()
    assert written.lines == ["the last word"]


def test_it_names_the_line_that_logged_and_keeps_the_traceback(written: Waiting) -> None:
    def fail() -> None:
        try:
            raise ValueError("odd")
        except ValueError:
            log.exception("it failed")

    on_hub(fail)
    fail()
    hublog.flush()
    assert [(record.funcName, os.path.basename(record.pathname)) for record in written.records] == [
        ("fail", "test_hublog.py")
    ] * 2  # fmt: skip
    assert all(record.exc_info and record.exc_info[0] is ValueError for record in written.records)


@pytest.mark.parametrize("what", ["the error", "its three parts"])
def test_an_error_that_is_not_being_handled_keeps_its_traceback_too(what: str, written: Waiting) -> None:
    error = ValueError("odd")
    on_hub(lambda: log.error("it failed", exc_info=error if what == "the error" else (ValueError, error, None)))
    hublog.flush()
    [record] = written.records
    assert record.exc_info == (ValueError, error, None)


def test_what_it_speaks_of_is_as_it_was_then(written: Waiting) -> None:
    some = [1]
    on_hub(lambda: (log.info("%s", some), some.append(2)))
    hublog.flush()
    assert written.lines == ["[1]"]


def test_a_level_that_nobody_wants_is_not_even_made(written: Waiting) -> None:
    class Never:
        def __str__(self) -> str:
            raise AssertionError("it was made")

    on_hub(lambda: log.debug("%s", Never()))
    hublog.flush()
    assert written.lines == []


def test_what_comes_faster_than_it_is_written_is_dropped_and_counted(
    written: Waiting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hublog, "SIZE", 10)
    on_hub(lambda: [log.info("%d", n) for n in range(25)])
    hublog.flush()
    assert written.lines == [*map(str, range(10))]
    assert "15 log records were dropped: they came faster than they could be written" in caplog.text
    on_hub(lambda: log.info("again"))
    hublog.flush()
    assert written.lines[-1] == "again"


def test_a_handler_that_fails_costs_its_record_and_no_other(written: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    emit = written.emit

    def failing(record: logging.LogRecord) -> None:
        if record.getMessage() == "bad":
            raise OSError("no server")
        emit(record)

    monkeypatch.setattr(written, "emit", failing)
    on_hub(lambda: (log.info("bad"), log.info("good")))
    hublog.flush()
    assert written.lines == ["good"]


def test_a_thread_without_a_hub_writes_at_once(written: Waiting) -> None:
    lines: list[str] = []
    written.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    thread = threading.Thread(target=log.info, args=("from a thread",))
    thread.start()
    thread.join(5)
    assert lines == ["from a thread"]


def test_whatever_may_be_called_on_a_hub_logs_through_it() -> None:
    rooms = [Path(framework.__file__).parent / room for room in ("engine", "middleware", "transports")]
    modules = [module for room in rooms for module in room.rglob("*.py")]
    plain = {module.name for module in modules if "logging.getLogger(__name__)" in module.read_text()}
    assert len(modules) > 60
    assert plain == {"guardian.py"}, "which logs from threads that it starts for that"


def test_while_a_hub_serves_nothing_is_waited_for_wherever_it_is_logged(written: Waiting) -> None:
    with hublog.serving(gevent.get_hub()):
        log.info("from a %s", "greenlet")
        assert written.lines == []
    assert written.lines == ["from a greenlet"]
    assert written.records[0].args == ("greenlet",), "who groups records by their words wants them apart"
    log.info("afterwards")
    assert written.lines[-1] == "afterwards"


def test_what_is_written_later_has_the_context_of_its_caller(written: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    number: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)
    seen: list[int] = []
    monkeypatch.setattr(written, "emit", lambda record: seen.append(number.get()))
    with hublog.serving(gevent.get_hub()):
        for each in (1, 2):
            number.set(each)
            log.info("")
    assert seen == [1, 2]


def test_a_handler_that_does_not_come_back_is_waited_for_once(
    written: Waiting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    back = gevent.event.Event()
    monkeypatch.setattr(written, "emit", lambda record: back.wait())
    monkeypatch.setattr(hublog, "_FLUSH_SECONDS", 0.01)
    unregistered: list[object] = []
    monkeypatch.setattr(hublog.atexit, "unregister", unregistered.append)
    with hublog.serving(gevent.get_hub()):
        log.info("1")
        log.info("2")
    assert unregistered == [logging.shutdown], "nor by the process at its end"
    assert "the last 2 log records could not be written" in capsys.readouterr().err
    began = time.monotonic()
    for seconds in (1.0, 600):
        hublog.flush(seconds)
    assert time.monotonic() - began < 0.9
    back.set()
    hublog.flush()


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, gevent.GreenletExit])
def test_one_that_raises_is_named_and_the_next_record_is_written(
    written: Waiting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: type[BaseException]
) -> None:
    emit = written.emit

    def failing(record: logging.LogRecord) -> None:
        if record.getMessage() == "bad":
            raise error("no server")
        emit(record)

    monkeypatch.setattr(written, "emit", failing)
    with hublog.serving(gevent.get_hub()):
        log.info("bad")
        log.info("good")
    assert written.lines == ["good"]
    assert "a log handler failed" in capsys.readouterr().err


def test_who_is_interrupted_while_a_record_is_written_is_not_kept_from_it(
    written: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: logging.LogRecord) -> None:
        raise KeyboardInterrupt

    queue = hublog._Queue()
    with monkeypatch.context() as patched:
        patched.setattr(hublog.gevent, "spawn", lambda _: object())
        queue.put(logging.makeLogRecord({"name": "hublog", "levelno": logging.INFO, "msg": "the first"}))
        patched.setattr(hublog, "_write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue._write_all()
    queue.put(logging.makeLogRecord({"name": "hublog", "levelno": logging.INFO, "msg": "the next"}))
    assert queue.flush(20)
    assert written.lines == ["the first", "the next"], "and it is written later"


@pytest.mark.parametrize("wanted", [True, False])
def test_that_a_handler_failed_is_said_where_that_is_wanted(
    wanted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", wanted)
    hublog._say_failed(OSError("no server"))
    assert ("a log handler failed: OSError: no server" in capsys.readouterr().err) is wanted
    monkeypatch.setattr(hublog.sys, "stderr", None)
    hublog._say_failed(OSError("no server"))
