"""Every command of benchmarks/README.md is one that its benchmark takes. They take minutes, so they are not run here."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache

import pytest

from framework.testing.servers import ROOT

PAGE = (ROOT / "benchmarks" / "README.md").read_text()
COMMANDS = re.findall(r"python -m (benchmarks\.\w+)([^#`\n]*)", PAGE)


@cache
def usage(module: str) -> str:
    done = subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{module}: {done.stderr}"
    return " ".join(done.stdout.split())


@pytest.mark.parametrize(("module", "arguments"), COMMANDS, ids=lambda part: part.strip())
def test_a_benchmark_has_the_options_that_the_page_gives_it(module: str, arguments: str) -> None:
    known = set(re.findall(r"\[(--[\w-]+)", usage(module)))
    assert set(re.findall(r"--[\w-]+", arguments)) - known == set()


def test_every_benchmark_is_on_the_page() -> None:
    makes_figures = {file.stem for file in (ROOT / "benchmarks").glob("[!_]*.py") if "argparse" in file.read_text()}
    assert makes_figures - {module.removeprefix("benchmarks.") for module, _ in COMMANDS} == set()


def test_help_of_both_is_help_and_names_every_other() -> None:
    """Whatever the words were, it ran both, for six minutes."""
    assert {module for module, _ in COMMANDS} == set(re.findall(r"python -m (benchmarks\.\w+)", usage("benchmarks")))
