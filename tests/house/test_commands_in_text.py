"""The commands and flags that stand in the sentences of README.md and docs, between backticks: each is one that there is.

They are not run: many name servers and files of nobody. Commands in blocks are run as they stand, by other tests."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from framework.cli.root import root
from framework.nsqd import options as nsqd
from framework.nsqlookupd import options as nsqlookupd
from framework.testing.servers import ROOT
from tests.chaos.scenarios import ALL
from tests.house.pages import PAGES, codes, name_of
from tests.house.test_benchmarks_page import usage
from workers.api_requests.stream import command as job

DAEMONS = {"nsqd": nsqd.FLAGS, "nsqlookupd": nsqlookupd.FLAGS}
"""Verbs whose flags are not click's."""
FOREIGN = {"--pool", "--jetstream", "--py-files", "--x"}
"""Flags of Celery, of nats-server and of spark-submit, and one that stands for any."""
COMMANDS = [(page, code) for page in PAGES for code in codes(page)]


def flags(words: list[str]) -> Iterator[str]:
    return (word.partition("=")[0] for word in words if word.startswith("--"))


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The verb, and what stands behind it."""
    found: click.Command = root
    while words and isinstance(found, click.Group):
        deeper = found.get_command(click.Context(root), words[0])
        assert deeper is not None, f"there is no verb {words[0]!r} in {found.name}"
        found, words = deeper, words[1:]
    return found, words


def options_of(command: click.Command) -> set[str]:
    return {name for one in command.params if isinstance(one, click.Option) for name in (*one.opts, *one.secondary_opts)}


def everything(command: click.Command = root) -> Iterator[str]:
    """Every flag of every verb."""
    yield from options_of(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            deeper = command.get_command(click.Context(command), name)
            assert deeper is not None
            yield from everything(deeper)


@cache
def known() -> frozenset[str]:
    daemons = (f"--{name}" for table in DAEMONS.values() for name in table)
    return frozenset({*everything(), *everything(job.command), *daemons, *FOREIGN, "--help", "--version"})


def check_workers(words: list[str]) -> None:
    daemon = DAEMONS.get(words[0])
    if daemon is not None:
        assert set(flags(words)) <= {f"--{name}" for name in daemon}
        return
    command, rest = command_of(words)
    assert set(flags(rest)) - {"--help"} <= options_of(command)


def check_python(words: list[str]) -> None:
    if words[0] != "-m":
        assert (ROOT / words[0]).exists(), words[0]
        return
    module, rest = words[1], words[2:]
    assert find_spec(module) is not None
    if module.startswith("benchmarks."):
        assert set(flags(rest)) <= set(re.findall(r"\[(--[\w-]+)", usage(module)))
    if module == "tests.chaos":
        assert {word for word in rest if word not in ("...", "…")} <= ALL.keys()


def check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        variable, given, _ = word.partition("=")
        assert re.search(rf"^export {variable} " if given else rf"^{variable}:", makefile, re.M), word


def check_pip(words: list[str]) -> None:
    assert words.pop(0) == "install"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [extra for word in words for extra in re.findall(r"\[(\w+)\]", word) if extra not in extras] == []


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "workers": check_workers,
    "python": check_python,
    "make": check_make,
    "pip": check_pip,
}


def complaint(code: str) -> str:
    """Why ``code`` is no command that there is; empty where it is one, or no command at all."""
    try:
        words = shlex.split(code)
    except ValueError:  # not the words of a shell: an apostrophe in a sentence, say
        return ""
    try:
        if code.startswith("--"):
            assert set(flags(words)) <= known()
        elif len(words) > 1 and words[0] in CHECKS:
            CHECKS[words[0]](words[1:])
    except AssertionError as error:
        return f"`{code}`: {str(error).splitlines()[0] if str(error) else 'no such flag'}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_in_its_sentences_are_ones_that_there_are(page: Path) -> None:
    assert [found for of, code in COMMANDS if of == page and (found := complaint(code))] == []


def test_there_are_enough_of_them() -> None:
    """Else they are not found any more."""
    whole = [code for _, code in COMMANDS if code.startswith("workers ") and "--" in code]
    assert len(whole) > 10
    assert any(code.startswith("workers run") and "--history" in code for code in whole)


@pytest.mark.parametrize(
    "wrong",
    [
        "workers walk", "workers run shop --no-such-flag", "workers ctl walk", "workers nsqd --no-such-flag=1", "--no-such-flag",
        "workers nsqlookupd --topic-quota=a=1", "python -m benchmarks.nothing", "python -m benchmarks.middleware --no-such-flag",
        "python -m tests.chaos no-such-scenario", "make dinner", "make demo DINNER=1", "pip install 'nsq-workers[dinner]'",
        "python tools/dinner.py",
    ],
)  # fmt: skip
def test_one_that_there_is_not_is_noticed(wrong: str) -> None:
    assert complaint(wrong)
