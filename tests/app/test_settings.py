"""Settings: which source wins, what each value may be, and that every mistake names its source."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from framework.amounts import cores
from framework.errors import BadSetting
from framework.settings import TABLE, Settings, as_markdown, check_writable, load
from framework.values import duration

ROOT = Path(__file__).parents[2]

#: For each setting, three values as they are written, and what they mean.
SAMPLES: dict[str, list[tuple[Any, Any]]] = {
    "brokers": [
        ("nsq://a:1", ("nsq://a:1",)),
        ("nsq://b:1 nsq://c:1", ("nsq://b:1", "nsq://c:1")),
        ("nsq://d:1", ("nsq://d:1",)),
    ],
    "data_path": [("one", Path("one")), ("two", Path("two")), ("three", Path("three"))],
    "nsqd_tcp_address": [("a:1", "a:1"), ("b:2", "b:2"), ("c:3", "c:3")],
    "nsqd_http_address": [("a:1", "a:1"), ("b:2", "b:2"), ("[::1]:3", "[::1]:3")],
    "processes": [("1", 1), ("4", 4), ("auto", cores())],
    "max_tasks": [("1", 1), ("1000", 1000), ("7", 7)],
    "max_rss": [("1000", 1000), ("500MB", 500 << 20), ("1.5 GiB", 3 << 29)],
    "drain": [("1", 1.0), ("500ms", 0.5), ("2m", 120.0)],
    "connect_deadline": [("1s", 1.0), ("never", None), ("1h", 3600.0)],
    "reload_deadline": [("1s", 1.0), ("never", None), ("1h", 3600.0)],
    "poll_interval": [("1", 1.0), ("2", 2.0), ("3 s", 3.0)],
    "longest_pause": [("1", 1.0), ("2", 2.0), ("3 s", 3.0)],
    "publish_timeout": [("1", 1.0), ("250ms", 0.25), ("30s", 30.0)],
    "handlers": [(f"{{a/b: {{timeout: {seconds}}}}}", (("a/b", {"timeout": float(seconds)}),)) for seconds in (1, 2, 3)],
    "log_level": [("debug", "debug"), ("WARNING", "warning"), ("error", "error")],
    "log_format": [("json", "json"), ("text", "text"), ("JSON", "json")],
    "log_frames": [("all", "all"), ("own", "own"), ("ALL", "all")],
    "log_file": [("a.log", Path("a.log")), ("b.log", Path("b.log")), ("c.log", Path("c.log"))],
    "admin": [("9464", "127.0.0.1:9464"), ("0.0.0.0:1", "0.0.0.0:1"), ("/run/a.sock", "/run/a.sock")],
    "admin_token": [(one * 16, one * 16) for one in "abc"],
    "admin_read_only": [("true", True), ("no", False), ("1", True)],
    "sentry_dsn": [(one, one) for one in ("https://a@b/1", "http://a:b@c:9/d/2", "https://x@y/3")],
    "sentry_events": [("dead", "dead"), ("EACH", "each"), ("dead", "dead")],
    "sentry_traces": [("1", 1.0), ("0.25", 0.25), ("0", 0.0)],
    "sentry_bodies": [("true", True), ("no", False), ("1", True)],
    "history": [("a.db", Path("a.db")), ("b.db", Path("b.db")), ("c.db", Path("c.db"))],
    "history_age": [("1h", 3600.0), ("48h", 172800.0), ("90", 90.0)],
    "history_size": [("1MB", 1 << 20), ("2GB", 2 << 30), ("500k", 500 << 10)],
    "otel": [("true", True), ("no", False), ("1", True)],
    "otel_spans": [("all", "all"), ("CALLS", "calls"), ("all", "all")],
    "otel_body_sizes": [("true", True), ("no", False), ("1", True)],
    "otel_producer": [("parent", "parent"), ("LINK", "link"), ("parent", "parent")],
    "ledger": [("a.json", Path("a.json")), ("b.json", Path("b.json")), ("c.json", Path("c.json"))],
}


def test_the_samples_cover_every_setting() -> None:
    assert set(SAMPLES) == set(TABLE) == {one.name for one in fields(Settings)}


@given(sources=st.dictionaries(st.tuples(st.sampled_from(list(SAMPLES)), st.sampled_from([0, 1, 2])), st.just(None)))
def test_flags_win_over_the_environment_over_the_file_over_the_defaults(
    sources: dict[tuple[str, int], None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    given_in: list[dict[str, Any]] = [{}, {}, {}]
    expected = {one.name: getattr(Settings(), one.name) for one in fields(Settings)}
    for name, source in sorted(sources, key=lambda key: key[1]):
        written, expected[name] = SAMPLES[name][source]
        given_in[source][name] = written
    config = tmp_path_factory.mktemp("config") / "workers.yaml"
    config.write_text(yaml.safe_dump(given_in[0]))
    environ = {TABLE[name].env: text for name, text in given_in[1].items()}
    flags = dict.fromkeys(TABLE) | given_in[2]
    found = load(flags, config, environ)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("written", "seconds"), [(25, 25), (0.5, 0.5), ("25", 25), ("25s", 25), ("500ms", 0.5), ("1.5 m", 90), ("2H", 7200), (0, 0)]
)
def test_a_duration_has_many_spellings(written: Any, seconds: float) -> None:
    assert duration(written) == seconds


@pytest.mark.parametrize("written", ["", "soon", "-1", -1, True, None, "5 days", "1s2", "nan", "inf", [1]])
def test_what_is_no_duration_is_refused(written: Any) -> None:
    with pytest.raises(ValueError, match="is not a duration: write seconds as 25"):
        duration(written)


@pytest.mark.parametrize("written", ["1000001h", "9" * 400, 10**400, "1" + "0" * 300])
def test_a_duration_that_no_clock_can_wait_for_is_refused(written: Any) -> None:
    with pytest.raises(ValueError, match="is too long: write 1000000h or less"):
        duration(written)
    assert duration("1000000h") == 3.6e9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("drian: 5", "unknown setting 'drian': did you mean 'drain'?"),
        ("broker: nsq://a:1", "unknown setting 'broker': did you mean 'brokers'?"),
        ("concurrency: 4", "'concurrency' is of a handler: write `handlers: {{orders/billing: {{concurrency: …}}}}`"),
        ("7: 5", "unknown setting 7: did you mean"),
        ("drain: soon", "drain in {path}: 'soon' is not a duration"),
        ("drain: yes", "drain in {path}: True is not a duration"),
        ("drain: [5]", "drain in {path}: [5] is not a duration"),
        ("poll_interval: 0", "poll_interval in {path}: 0 must be longer than 0"),
        ("brokers: 5", "brokers in {path}: 5 is not a URL or a list of them"),
        ("brokers: [nsq://a:1, 5]", "is not a URL or a list of them"),
        ("brokers: ''", "brokers in {path}: '' is not a URL: write nsq://host:4150"),
        ("log_level: loud", "log_level in {path}: 'loud' is not a log level: write one of debug, info"),
        ("data_path: 5", "data_path in {path}: 5 is not a path"),
        ("nsqd_tcp_address: 4150", "nsqd_tcp_address in {path}: 4150 is not an address: write host:port"),
        ("- drain", "must hold one `name: value` a line, not a list"),
        ("drain: [", "is not YAML"),
        ("drain: 5s\nledger: a\ndrain: 6s", "'drain' is given twice: keep one of them"),
        ("\x00", "is not YAML"),
        pytest.param("drain: " + "[" * 5000, "is not YAML: maximum recursion depth exceeded", id="deep"),
    ],
)
def test_a_mistake_in_the_file_names_the_file_and_the_fix(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    path.write_text(text)
    with pytest.raises(BadSetting) as caught:
        load({}, path, {})
    assert words.format(path=path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"no\.yaml: No such file"):
        load({}, tmp_path / "no.yaml", {})
    with pytest.raises(BadSetting, match="Is a directory"):
        load({}, tmp_path, {})


def test_an_empty_file_and_empty_variables_set_nothing(tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    path.write_text("# nothing yet\ndrain:\n")
    assert load({}, path, {"BROKER_URL": "", "WORKERS_DRAIN": ""}) == Settings()


def test_a_mistake_in_the_environment_or_a_flag_names_it() -> None:
    with pytest.raises(BadSetting, match=r"^\$WORKERS_DRAIN: 'soon' is not a duration"):
        load({}, None, {"WORKERS_DRAIN": "soon"})
    with pytest.raises(BadSetting, match=r"^--drain: 'soon' is not a duration"):
        load({"drain": "soon"}, None, {})


def test_a_secret_that_is_wrong_is_not_shown() -> None:
    with pytest.raises(BadSetting, match=r"^\$WORKERS_ADMIN_TOKEN: it is not 16 or more letters") as caught:
        load({}, None, {"WORKERS_ADMIN_TOKEN": "sesame"})
    assert "sesame" not in str(caught.value)


def test_a_variable_that_is_nearly_a_setting_is_refused_and_one_of_another_program_is_not() -> None:
    with pytest.raises(BadSetting, match=r"^\$WORKERS_DRIAN: there is no such setting: did you mean \$WORKERS_DRAIN\?"):
        load({}, None, {"WORKERS_DRIAN": "5s"})
    assert load({}, None, {"WORKERS_COUNT": "4", "WORKERS_HOME": "/", "DRAIN": "5"}) == Settings()


@pytest.mark.parametrize(
    "written",
    [
        "nsq+lookupd://a:1,b:1 nsq+lookupd://c:1",
        "nsq+lookupd://a:1,b:1,nsq+lookupd://c:1",
        ["nsq+lookupd://a:1,b:1", "nsq+lookupd://c:1"],
        " nsq+lookupd://a:1,b:1 ,  nsq+lookupd://c:1\n",
    ],
)
def test_several_urls_may_be_written_with_spaces_commas_or_as_a_list(written: Any) -> None:
    assert load({"brokers": written}, None, {}).brokers == ("nsq+lookupd://a:1,b:1", "nsq+lookupd://c:1")


def test_a_wrong_value_is_shown_in_a_hundred_characters() -> None:
    with pytest.raises(BadSetting) as caught:
        load({"drain": "9" * 5000}, None, {})
    assert len(str(caught.value)) < 250


def test_the_page_in_docs_is_the_one_made_from_the_table() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == as_markdown(), "run: python -m framework.settings > docs/settings.md"


def test_a_file_that_could_not_be_written_at_the_end_is_refused_at_once(tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept.json", tmp_path / "folder"
    kept.touch()
    folder.mkdir()
    for good in (kept, tmp_path / "new.json"):
        check_writable(good, "--ledger")
    for bad in (folder, tmp_path / "no" / "such.json", tmp_path / ("x" * 300)):
        with pytest.raises(BadSetting, match=f"--ledger {bad} cannot be written"):
            check_writable(bad, "--ledger")
    assert not (tmp_path / "new.json").exists()
