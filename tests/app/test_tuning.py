"""The setting ``handlers``: what an operator changes of them without a commit, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.app import App
from framework.errors import BadSetting
from framework.handler import HandlerSpec, make_spec
from framework.message import Batch
from framework.settings import load
from framework.tuning import tuned


def one(message) -> None: ...


def many(batch: Batch) -> None: ...


def handlers() -> list[HandlerSpec]:
    return [
        make_spec(one, "orders", "billing", {"timeout": 5}), make_spec(many, "orders", "audit", {"batch": 10}),
        make_spec(one, "orders", "shipping"),
    ]  # fmt: skip


def told(text: str) -> list[HandlerSpec]:
    return tuned(handlers(), load(environ={"WORKERS_HANDLERS": text}).handlers)


def test_what_is_named_changes_and_nothing_else() -> None:
    billing, audit, shipping = told("{orders/billing: {concurrency: 20, max_attempts: 3}, orders/audit: {batch: 50, linger: 2s}}")
    assert (billing.concurrency, billing.max_attempts, billing.timeout) == (20, 3, 5)
    assert (audit.batch, audit.linger, audit.concurrency) == (50, 2.0, 10)
    assert shipping == handlers()[2]


def test_an_app_has_its_handlers_as_its_settings_say() -> None:
    settings = load(environ={"WORKERS_HANDLERS": "{orders/billing: {concurrency: 20}}"})
    assert [spec.concurrency for spec in App(handlers(), settings).handlers] == [20, 10, 10]
    with pytest.raises(BadSetting, match="orders/billing"):
        App(handlers()[1:], settings)


def test_what_follows_from_an_option_follows_from_the_setting_too() -> None:
    billing, *_ = told("{orders/billing: {concurrency: 5000}}")
    assert billing.max_in_flight == 5000
    assert "concurrency" in billing.given, "what a broker cannot honour is refused where it was asked for"


def test_the_flag_comes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text("handlers:\n  orders/billing: {timeout: 2m}\n")
    environ = {"WORKERS_HANDLERS": "{orders/billing: {timeout: 3m}}"}
    seconds = [
        tuned(handlers(), load(flags, file, given).handlers)[0].timeout
        for flags, given in [({}, {}), ({}, environ), ({"handlers": "{orders/billing: {timeout: 4m}}"}, environ)]
    ]
    assert seconds == [120, 180, 240]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{orders/billin: {concurrency: 2}}", "names 'orders/billin', which is not among those to run: orders/billing,"),
        ("{orders/billing: {concurency: 2}}", "did you mean 'concurrency'"),
        ("{orders/billing: {policy: 2}}", "has 'policy' for orders/billing, which cannot be set here"),
        ("{orders/billing: {concurrency: 0}}", "concurrency=0 for orders/billing, which is not a whole number of calls"),
        ("{orders/billing: {concurrency: '20'}}", "concurrency='20'"),
        ("{orders/billing: {timeout: soon}}", "timeout='soon'"),
        ("{orders/billing: {concurrency: 9, max_in_flight: 8}}", "orders/billing: concurrency=9 can never be reached"),
        ("{orders/billing: {batch: 9}}", "orders/billing takes one message at a time"),
        ("{orders/billing: {timeout: 1}, orders/billing: {timeout: 2}}", "is given twice"),
        ("{orders/billing: 20}", "write {orders/billing: {concurrency: 20}}"),
        ("20", "write {orders/billing: {concurrency: 20}}"),
        ("[", "is not YAML"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(BadSetting) as refused:
        told(text)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
