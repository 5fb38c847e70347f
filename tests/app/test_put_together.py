"""What an App is put together of: what its supervisor is given, what settings put around handlers, and what is refused when."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework import admin, history, otel, sentry
from framework import app as module
from framework.app import App, embedded_nsqd
from framework.engine.ledger import Ledger
from framework.errors import BadSetting, BrokerRefuses, BrokerUnreachable, FrameworkError, WrongUse
from framework.handler import make_spec
from framework.message import Message
from framework.nsqd import embedded
from framework.settings import Settings, as_environ, write_at_end
from framework.transports.memory import MemoryBroker, add, forget


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    made = MemoryBroker("put-together")
    add(made)
    yield made
    forget(made.name)


def nothing(message: Message) -> None:
    """What is decorated."""


def made(**settings: Any) -> App:
    return App([make_spec(nothing, "orders", "billing", {})], Settings(**settings))


class Supervisor:
    """In the place of the engine's."""

    def __init__(self, handlers: Any, transports: Any, **given: Any) -> None:
        self.handlers, self.transports, self.given = handlers, transports, given
        self.ledgers: dict[str, Ledger] = {"orders/billing": Ledger(received=1)}
        self.published: dict[str, Any] = {}
        self.ready, self.stopping, self.time_left = True, False, math.inf
        self.ran = False

    def run(self) -> None:
        self.ran = True

    def stop(self, now: bool = False) -> None: ...


@pytest.fixture
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Supervisor", Supervisor)


def run(app: App, **how: Any) -> Any:
    app.run(**how)
    return app._supervisor


@pytest.mark.usefixtures("_fake")
@pytest.mark.parametrize("nsqd", [True, False])
def test_the_engine_is_given_what_the_settings_say(nsqd: bool, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"drain": 7.0, "connect_deadline": 8.0, "poll_interval": 9.0, "longest_pause": 10.0, "publish_timeout": 11.0}
    app = made(**settings, brokers=() if nsqd else (broker.url,))
    monkeypatch.setattr(module, "embedded_nsqd", lambda _: _Block(SimpleNamespace(url=broker.url, ended=False) if nsqd else None))
    supervisor = run(app)
    given = supervisor.given
    assert {name: given[name] for name in ("drain", "connect_deadline", "poll_interval", "longest_pause", "leave")} == {
        "drain": 7.0, "connect_deadline": 8.0, "poll_interval": 9.0, "longest_pause": 10.0, "leave": None,
    }  # fmt: skip
    assert given["environ"] == as_environ(Settings(brokers=(broker.url,), publish_timeout=11.0)), "for slot processes"
    assert given["publish"].__self__._plain == {"timeout": 11.0}
    assert (supervisor.handlers, len(supervisor.transports), supervisor.ran) == (app.handlers, 1, True)


class _Block:
    """``made``, as long as a block lasts."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __enter__(self) -> Any:
        return self._made

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.usefixtures("_fake")
def test_what_is_to_stop_before_it_runs_does_not_run_and_a_ledger_that_cannot_be_is_refused_first(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    app = made(brokers=(broker.url,))
    app.stop()
    assert not run(app).ran
    with pytest.raises(BadSetting, match="--ledger"):
        made(brokers=(broker.url,), ledger=tmp_path / "no" / "file").run()


@pytest.mark.usefixtures("_fake")
def test_its_end_is_written_in_the_ledger_whatever_it_ends_with(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Supervisor) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Supervisor, "run", fails)
    with pytest.raises(ZeroDivisionError):
        made(brokers=(broker.url,), ledger=tmp_path / "ledger.json").run()
    text = (tmp_path / "ledger.json").read_text()
    assert json.loads(text)["orders/billing"]["received"] == 1
    assert text.startswith('{\n  "orders/billing": {\n    "received"')


@pytest.mark.usefixtures("_fake")
def test_a_process_that_leaves_says_why_and_writes_its_ledger_first(
    broker: MemoryBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Left(Exception):
        pass

    def leave() -> Any:
        raise Left

    supervisor = run(made(brokers=(broker.url,), ledger=tmp_path / "ledger.json"), leave=leave)
    (tmp_path / "ledger.json").unlink()
    with pytest.raises(Left):
        supervisor.given["leave"]()
    assert (tmp_path / "ledger.json").exists()
    assert "a handler still blocks the hub after the time to drain" in caplog.text


@pytest.mark.usefixtures("_fake")
def test_it_leaves_though_nobody_takes_its_last_words(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, left = threading.Event(), []
    supervisor = run(made(brokers=(broker.url,)), leave=lambda: left.append(1))  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(module, "_LAST_WORDS", 0.02)
    monkeypatch.setattr(module.log, "error", lambda *_: go.wait(60))
    supervisor.given["leave"]()
    assert left == [1]
    go.set()


@pytest.mark.usefixtures("_fake")
@pytest.mark.parametrize("address", ["127.0.0.1:0", None])
def test_there_is_an_admin_endpoint_where_one_is_asked_for(
    address: str | None, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Any] = []

    def serving(settings: Any, here: Any, opened: Any) -> Any:
        served.append((settings.admin, here._supervisor, [type(one).__name__ for one in opened()]))
        return _Block(None)

    monkeypatch.setattr(admin, "serving", serving)
    supervisor = run(made(brokers=(broker.url,), admin=address))
    assert served == ([("127.0.0.1:0", supervisor, ["MemoryTransport"])] if address else [])


# --- what settings put around handlers ---------------------------------------------------------------------


def test_what_watches_handlers_is_there_where_it_is_asked_for_and_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def watching(name: str) -> Any:
        return lambda handlers, *what, **how: (asked.append((name, what, how)), [*handlers, name])[1]

    for name, room in (("otel", otel), ("history", history), ("sentry", sentry)):
        monkeypatch.setattr(room, "watched", watching(name))
    monkeypatch.delitem(sys.modules, "sentry_sdk", raising=False)
    assert [str(one) for one in made().handlers[1:]] == []
    file = Path("history.db")
    all_ = made(otel=True, history=file, history_age=5.0, history_size=7, sentry_dsn="http://k@h/1")
    assert [str(one) for one in all_.handlers[1:]] == ["otel", "history", "sentry"]
    assert asked[1] == ("history", (file,), {"age": 5.0, "size": 7})
    assert asked[0][1][0] == otel.of_settings(all_.settings)
    assert asked[2][1][0] == sentry.of_settings(all_.settings)


@pytest.mark.parametrize("active", [True, False])
def test_an_app_that_has_called_sentry_itself_is_watched_as_well(active: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentry, "watched", lambda handlers, options: [*handlers, "sentry"])
    client = SimpleNamespace(is_active=lambda: active)
    monkeypatch.setitem(sys.modules, "sentry_sdk", SimpleNamespace(get_client=lambda: client))
    assert len(made().handlers) == 1 + active


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            PermissionError(13, "Permission denied"),
            "--data-path here cannot be used: Permission denied: name a folder that is yours",
        ),
        (BrokerUnreachable("port 4150 is taken"), "the embedded nsqd does not start: port 4150 is taken (--nsqd-tcp-address"),
    ],
)
def test_an_nsqd_of_our_own_that_cannot_be_names_the_setting(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(embedded, "ensure", fails)
    with pytest.raises(BadSetting) as refused, embedded_nsqd(Settings(data_path=Path("here"))):
        pytest.fail("it started")
    assert words in str(refused.value)


def test_an_nsqd_of_our_own_lives_as_long_as_it_is_needed_and_only_where_no_broker_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    nsqd = SimpleNamespace(stop=lambda: asked.append("stop"))
    monkeypatch.setattr(embedded, "ensure", lambda *what, **how: (asked.append((what, how)), nsqd)[1])
    with embedded_nsqd(Settings(brokers=("nsq://a:1",))) as none:
        assert (none, asked) == (None, [])
    settings = Settings(data_path=Path("here"), nsqd_tcp_address="a:1", nsqd_http_address="b:2")
    with pytest.raises(ZeroDivisionError), embedded_nsqd(settings) as one:
        assert one is nsqd
        assert asked == [((Path("here"),), {"tcp_address": "a:1", "http_address": "b:2"})]
        raise ZeroDivisionError
    assert asked[1:] == ["stop"]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What brokers cannot do, and what is said of it."""
    said: dict[str, Any] = {"refusals": [], "misfits": [], "notes": [], "cautions": [], "asked": []}
    monkeypatch.setattr(module, "refusals", lambda *_: said["refusals"])
    monkeypatch.setattr(module, "cautions", lambda *_: said["cautions"])
    monkeypatch.setattr(module, "notes", lambda *_: said["notes"])
    monkeypatch.setattr(module, "misfits", lambda *_: said["misfits"])
    monkeypatch.setattr(module, "described", lambda handlers, transport, seconds: said["asked"].append(seconds))
    return said


@pytest.mark.usefixtures("_fake")
def test_the_first_thing_that_a_broker_cannot_do_is_refused_and_before_it_is_asked_what_is_known_without(
    judged: dict[str, Any], broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    app = made(brokers=(broker.url,))
    judged |= {"cautions": ["it loses messages"], "notes": ["it has a limit"]}
    run(app)
    assert [(record.levelname, record.getMessage()) for record in caplog.records[:2]] == [
        ("INFO", "it has a limit"), ("WARNING", "it loses messages")
    ]  # fmt: skip
    judged["misfits"] = ["no such size", "second"]
    with pytest.raises(WrongUse, match=r"^no such size$"):
        app.run()
    judged |= {"refusals": ["no channels", "second"], "asked": []}
    with pytest.raises(WrongUse, match=r"^no channels$"):
        app.run()
    assert judged["asked"] == []


@pytest.mark.usefixtures("_fake")
@pytest.mark.parametrize("known", [True, False])
def test_why_a_broker_has_refused_is_asked_for_once_more(
    known: bool, judged: dict[str, Any], broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may have said it too late before the start."""

    def refused(self: Supervisor) -> None:
        judged["misfits"] = ["its lease is too short"] if known else []
        raise BrokerRefuses("E_INVALID")

    monkeypatch.setattr(Supervisor, "run", refused)
    with pytest.raises(WrongUse if known else BrokerRefuses, match="its lease is too short" if known else "E_INVALID"):
        made(brokers=(broker.url,)).run()
    assert judged["asked"] == [module._DESCRIBE_SECONDS, module._WHY_SECONDS]


def test_what_a_disk_refuses_at_the_end_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(FrameworkError, match=r"--ledger .* cannot be written: Is a directory; its counts are in the lines above"):
        write_at_end(tmp_path, "--ledger", "x")
