"""CI runs a few failed tests once more by themselves, says so, and fails for all that fail again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.pages import blocks

ROOT = Path(__file__).parents[2]

FAILS_ONCE = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("name", ["a", "b@c"])
def test_fails_once(name):
    seen = Path(f"seen-{name}")
    if not seen.exists():
        seen.touch()
        raise AssertionError("the first time")
"""
QUICK = {"TESTS_AT_A_TIME": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist"}
"""One test at a time, by a pytest that has imported no more than that takes."""
FAILS_ALWAYS = "def test_fails_always():\n    assert False\n"


@pytest.fixture
def project(tmp_path):
    """What ``tools/test`` finds around itself, with checks that find nothing."""
    tools, binaries, tests = tmp_path / "tools", tmp_path / ".venv/bin", tmp_path / "tests"
    for folder in (tools, binaries, tests):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "tools/test", tools / "test")
    for stub in (tools / "find-java", tools / "apt-install", *(binaries / name for name in ("ruff", "mypy", "lint-imports"))):
        write_script(stub, "true")
    nothing_to_fetch = 'case "$2" in tests.*) exit 0 ;; esac'
    write_script(binaries / "python", f'{nothing_to_fetch}\nexec "{sys.executable}" "$@"')
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow', 'spark']\n")
    return tmp_path


def write_script(path, command):
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)


def run(project: Path, tests: str, second_tries: int, what: str = "fast") -> tuple[int, str]:
    (project / "tests/test_it.py").write_text(tests)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = ["sh", "tools/test", what]
    environment = clean | QUICK | {"SECOND_TRIES": str(second_tries)}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def test_what_passes_only_then_is_named_and_stops_nothing(project):
    code, said = run(project, FAILS_ONCE, 3)
    assert code == 0
    named = said.split("PASSED ONLY WHEN RUN AGAIN")[1]
    assert "test_fails_once[a]" in named
    assert "test_fails_once[b@c]" in named
    assert said.count("the first time") >= 2, "the first failures are printed"


@pytest.mark.parametrize(
    ("tests", "second_tries"),
    [(FAILS_ONCE + FAILS_ALWAYS, 3), (FAILS_ONCE, 1), (FAILS_ONCE, 0), ("def broken(:\n", 3), ("", 3)],
    ids=["fails-again", "too-many", "nobody-asked", "does-not-compile", "no-test-at-all"],
)
def test_all_else_fails(project, tests, second_tries):
    code, said = run(project, tests, second_tries)
    assert code != 0
    assert "PASSED ONLY" not in said
    assert "fast tests" in said.split("== seconds")[1]


BOTH = """
import pytest

def test_fast(): open("fast", "w").close()

@pytest.mark.slow
def test_slow(): open("slow", "w").close()

@pytest.mark.spark
def test_spark(): open("spark", "w").close()
"""


def test_the_readmes_command_runs_the_linters_and_every_test(project: Path) -> None:
    """In a project whose linters note that they were asked: here it would run itself."""
    commands = [line[2:] for block in blocks(ROOT / "README.md") for line in block.text.splitlines() if line.startswith("$ ")]
    (command,) = [one for one in commands if one.startswith("make t")]
    shutil.copy(ROOT / "Makefile", project)
    asked = project / "asked"
    for stub in (project / "tools/venv", *(project / ".venv/bin" / name for name in ("ruff", "mypy", "lint-imports"))):
        write_script(stub, f'echo "{stub.name} $*" >>"{asked}"')
    (project / "tests/test_it.py").write_text(BOTH)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
    environment = clean | QUICK
    done = subprocess.run(
        ["bash", "-c", command], cwd=project, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    linters = ["ruff check .", "ruff format --check .", "mypy", "lint-imports"]
    assert [line.strip() for line in asked.read_text().splitlines()] == ["venv spark,dev", *linters]
    assert all((project / name).exists() for name in ("fast", "slow", "spark"))
