"""`run` and `check` on a broker that cannot carry a handler: both say the same sentence, and nothing is connected."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import pytest

from framework.app import App
from framework.cli.root import run_command
from framework.errors import WrongUse
from framework.handler import make_spec
from framework.settings import Settings
from framework.transports.contract import Capabilities


class Plain:
    """A transport without fan-out and without a count of deliveries; whatever would connect is an AttributeError."""

    capabilities = Capabilities(touch=True, attempts=False, fan_out=False, max_defer=0.0)

    def accept(self, topic: str, channels: Collection[str]) -> None:
        if len(channels) > 1:
            raise WrongUse(f"topic {topic!r} has {len(channels)} channels, and this broker keeps one copy: leave one")

    def producer(self) -> SimpleNamespace:
        return SimpleNamespace(close=lambda: None)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("framework.app", "framework.cli.check"):
        monkeypatch.setattr(f"{module}.open_transports", lambda urls: [Plain()])


def function(message):
    """What is decorated."""


def test_run_refuses_before_any_connection():
    handlers = [make_spec(function, "orders", channel) for channel in ("a", "b")]
    with pytest.raises(WrongUse, match="topic 'orders' has 2 channels, and this broker keeps one copy: leave one"):
        App(handlers, Settings(brokers=("plain://",))).run()


def test_check_says_everything_that_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    (tmp_path / "refused_shop.py").write_text(
        "from framework import handler\n"
        '@handler("orders", "a", max_attempts=3)\ndef a(m: bytes): ...\n'
        '@handler("orders", "b")\ndef b(m: bytes): ...\n'
    )
    monkeypatch.setattr("framework.cli.check._probe", lambda *_: [])
    monkeypatch.chdir(tmp_path)
    assert run_command(["check", "refused_shop", "--broker", "plain://"]) == 2
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("ok")]
    assert "FAIL  handler  refused_shop.a (refused_shop.py:2): topic 'orders' has 2 channels" in lines[0]
    assert "refused_shop.a (refused_shop.py:2): max_attempts=3 cannot be kept" in lines[1]
    assert lines[2].startswith("note  handler  refused_shop.b (refused_shop.py:4): this broker does not count deliveries")
