"""What a master refuses at its start and at a reload: what could not be done in the end, and what is open and in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework.errors import BadSetting
from framework.master import refused
from framework.observe import logfile
from framework.settings import Settings

BROKER = ("nsq://127.0.0.1:1",)


@pytest.mark.parametrize(
    ("embedded", "now", "words"),
    [
        (False, {"brokers": BROKER}, ""),
        (False, {"brokers": ("nsq://127.0.0.1:2",)}, ""),
        (False, {"brokers": BROKER, "data_path": Path("elsewhere")}, ""),
        (False, {}, "the embedded nsqd is where it was at the start"),
        (True, {}, ""),
        (True, {"brokers": BROKER}, "the embedded nsqd is where it was at the start"),
        (True, {"data_path": Path("elsewhere")}, "the embedded nsqd is where it was at the start"),
    ],
)
def test_a_reload_keeps_the_embedded_nsqd_or_that_there_is_none(embedded: bool, now: dict[str, Any], words: str) -> None:
    before = Settings() if embedded else Settings(brokers=BROKER)
    if not words:
        refused.at_reload(Settings(**now), before, embedded=embedded)
        return
    with pytest.raises(BadSetting, match=words):
        refused.at_reload(Settings(**now), before, embedded=embedded)


@pytest.mark.parametrize("former", [True, False])
@pytest.mark.parametrize("new", [True, False])
def test_a_log_that_is_in_a_file_stays_in_one(former: bool, new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "_file", [tmp_path / "old.log"] if former else [])
    settings = Settings(brokers=BROKER, log_file=tmp_path / "new.log" if new else None)
    if former and not new:
        with pytest.raises(BadSetting, match="stderr is gone"):
            refused.at_reload(settings, settings, embedded=False)
    else:
        refused.at_reload(settings, settings, embedded=False)


def test_what_could_not_be_written_or_measured_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "no" / "file"
    with pytest.raises(BadSetting, match=r"--log-file .* in a folder that exists"):
        refused.at_reload(Settings(brokers=BROKER, log_file=nowhere), Settings(brokers=BROKER), embedded=False)
    for refuses in (refused.at_start, lambda one: refused.at_reload(one, one, embedded=False)):
        with pytest.raises(BadSetting, match="--ledger"):
            refuses(Settings(brokers=BROKER, ledger=nowhere))
    limited = Settings(brokers=BROKER, max_rss=1000)
    refused.at_start(limited)
    monkeypatch.setattr(refused, "rss", lambda: 0)
    refused.at_start(Settings(brokers=BROKER))
    with pytest.raises(BadSetting, match="--max-rss: this system does not tell"):
        refused.at_start(limited)
