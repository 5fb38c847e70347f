"""docs/coming-from.md: what stands in a column "Here" exists: options of @handler and publish, verbs and flags, exceptions."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import framework
from framework.cli.root import root
from framework.handler import _registry
from framework.testing import servers
from framework.testing.fixtures import memory_broker
from framework.testing.servers import ROOT, running
from tests.house.pages import blocks

PAGE = ROOT / "docs" / "coming-from.md"
HERE = [code for row in re.findall(r"^\|.*\| (.+) \|$", PAGE.read_text(), re.MULTILINE) for code in re.findall(r"`([^`]+)`", row)]
PYTHON = [code for code in HERE if re.match(r"@|raise |publish", code)]
VERBS = [code for code in HERE if code.startswith("workers ")]
NAMES = {"order": {"id": 1}, "bodies": [b"1", b"2"]}


def test_what_is_looked_at_is_what_there_is() -> None:
    others = {code for code in HERE if code not in PYTHON and code not in VERBS}
    names = {"return", '"process"', "broker", "worker", "Message", "HandlerTimeout", "orders.billing.dead", "except Exception"}
    assert others <= names | {"--longest-pause", "around(self, job, call)"}
    assert len(PYTHON) > 20
    assert len(VERBS) > 5


@pytest.mark.parametrize("code", sorted(set(PYTHON)))
def test_each_line_of_python_is_one(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registry, "entries", {})
    names = {name: getattr(framework, name) for name in framework.__all__} | NAMES
    if code.startswith("@"):
        exec(f"{code}\ndef f(message): ...", names)
    elif code.startswith("raise "):
        with pytest.raises((framework.Retry, framework.Reject, framework.Backoff)):
            exec(code, names)
    else:
        with memory_broker():
            exec(code, names)


@pytest.mark.parametrize("command", sorted(set(VERBS)))
def test_each_verb_takes_its_flags(command: str) -> None:
    group: click.Command = root
    words = shlex.split(command)[1:]
    context = click.Context(root)
    while words and isinstance(group, click.Group):
        found = group.get_command(context, words.pop(0))
        assert found is not None, command
        group = found
    group.make_context("workers", words, resilient_parsing=False)


def test_what_cron_runs_publishes(tmp_path: Path) -> None:
    [block] = blocks(PAGE)
    line = block.text.splitlines()[1].split(" ", 6)[-1]
    with running(servers.own_nsqd(tmp_path)) as nsqd:
        line = line.replace("/srv/shop/.venv/bin", str(Path(sys.executable).parent)).replace("127.0.0.1:4150", nsqd.address)
        subprocess.run(["sh", "-c", line], check=True, timeout=60, capture_output=True)
        [topic] = nsqd.http("/stats?format=json&topic=reports")["topics"]
    assert topic["message_count"] == 1
