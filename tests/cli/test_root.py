"""The ``workers`` command as a whole: its help, its exit codes and their page, and what it says to nonsense."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from framework.cli.exit_codes import Exit, as_markdown
from framework.cli.root import VERBS
from framework.settings import TABLE
from framework.testing.workers import call

ROOT = Path(__file__).parents[2]


def test_help_names_every_verb_and_every_exit_code(tmp_path: Path) -> None:
    done = call("--help", cwd=tmp_path)
    assert done.returncode == 0
    for verb, words in VERBS.items():
        assert f"  {verb} " in done.stdout
        assert words in " ".join(done.stdout.split())  # a long line is wrapped
    for code in Exit:
        assert f"{code.value}  {code.meaning}" in done.stdout


def test_help_of_run_names_every_setting_with_its_variable_and_default(tmp_path: Path) -> None:
    said = " ".join(call("run", "--help", cwd=tmp_path).stdout.split())
    for row in TABLE.values():
        assert f"{row.flag} {row.metavar}" in said
        assert f"[${row.env}; default: {row.shown_default}]" in said


def test_the_page_of_exit_codes_is_the_one_made_from_them() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text()
    assert page == as_markdown(), "run: python -m framework.cli.exit_codes > docs/exit-codes.md"


def test_version(tmp_path: Path) -> None:
    assert call("--version", cwd=tmp_path).stdout.startswith("workers 0.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], "workers: No such command 'rnu' (see `workers --help`)"),
        (["--nope"], "No such option '--nope'"),
        ([], "Usage: workers"),
    ],
)
def test_nonsense_is_exit_2(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = call(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize("verb", ["--help", "docs"])
def test_an_output_that_cannot_be_written_is_said_in_one_sentence(verb: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from framework import handler\n@handler('orders', 'bill')\ndef bill(text: str): ...\n")
    command = [sys.executable, "-m", "framework.cli", verb, *(["shop"] if verb == "docs" else [])]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "workers: the output cannot be written: No space left on device\n")


def test_a_verb_that_only_looks_says_what_it_waits_for_and_not_for_long(tmp_path: Path) -> None:
    assert "default: 5s]" in " ".join(call("stats", "--help", cwd=tmp_path).stdout.split())
    for verb in (("stats",), ("scale-hint", "orders/bill"), ("pause", "orders")):
        done = call(*verb, "--broker", "nsq://127.0.0.1:1", "--connect-deadline", "1.6", cwd=tmp_path)
        assert done.returncode == 3
        waits, given_up = done.stderr.splitlines()
        assert "tried again, and gives up after 1.6 s (--connect-deadline)" in waits
        assert waits.startswith(given_up)
