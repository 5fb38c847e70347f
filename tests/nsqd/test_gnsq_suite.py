"""gnsq 1.0.2's own test suite, as its authors wrote it, against our nsqd and nsqlookupd in the place of the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.testing.servers import ROOT

_FOLDER = ROOT / ".cache" / "suites" / "gnsq-1.0.2"
_PASS = 108
"""As many as against the real ones: all."""


def _suite() -> Path:
    """Its sdist, unpacked, with what it needs beside it; fetched once. Raises CalledProcessError."""
    if not _FOLDER.exists():
        fresh = _FOLDER.with_suffix(".new")
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        _run(*pip, "download", "--no-deps", "--no-binary", "gnsq", "--dest", str(fresh), "gnsq==1.0.2")
        (archive,) = fresh.glob("gnsq-1.0.2.tar.gz")
        with tarfile.open(archive) as sdist:
            sdist.extractall(fresh, filter="data")
        constraints = str(ROOT / "constraints.txt")
        _run(*pip, "install", "-c", constraints, "--upgrade", "--target", str(fresh / "site"), "six", "blinker", "urllib3")
        fresh.rename(_FOLDER)
    return _FOLDER


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture
def suite(request: pytest.FixtureRequest) -> Path:
    try:
        return _suite()
    except subprocess.CalledProcessError as error:
        words = f"gnsq 1.0.2 cannot be fetched: {error.stderr[-300:]}"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)


@pytest.fixture
def wrapper(tmp_path: Path) -> Callable[[str], None]:
    """Puts a program of two lines into the folder ``bin``."""

    def make(name: str) -> None:
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m framework.{name} "$@"\n')
        program.chmod(0o755)

    return make


@pytest.mark.long_run
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_of_it_passes(suite: Path, wrapper: Callable[[str], None], tmp_path: Path) -> None:
    for name in ("nsqd", "nsqlookupd"):
        wrapper(name)
    sdist = suite / "gnsq-1.0.2"
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(suite / "site"), str(sdist), str(ROOT)]),
        "SLOW_TIMEOUT": "60",  # its own 10 s are for a machine that does nothing else
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "ignore"],
        cwd=sdist, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"{_PASS} passed" in done.stdout, done.stdout[-4000:] + done.stderr[-1000:]
    assert "failed" not in done.stdout.splitlines()[-1]
    assert "skipped" not in done.stdout.splitlines()[-1]
