"""What `pip install .` installs, in an environment that has nothing of the clone: the framework and its plugins, and it runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from framework.testing.servers import ROOT, free_port
from tests.house.pages import blocks

pytestmark = pytest.mark.slow

SHIPPED = ("framework", "pyspark_nsq", "pytest_workers")
COMMAND = "workers_command.py"
DEADLINE = 60.0
OURS = Path(sysconfig.get_path("purelib"))

(INSTALL,) = re.findall(r"^\$ (pip install .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)

HELLO = """
from framework import handler
@handler("greetings", "hello")
def greet(name: str) -> None:
    print(f"hello, {name}", flush=True)
"""


class Environment:
    """A fresh virtual environment that borrows `pip`, what it builds with, and the dependencies from the tests' own: offline."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        (self.site,) = folder.glob("lib/python*/site-packages")
        pip = self.bin / "pip"
        pip.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pip --python {shlex.quote(str(folder))} "$@"\n')
        pip.chmod(0o755)
        self._borrow_setuptools(folder / "borrowed")

    def _borrow_setuptools(self, there: Path) -> None:
        there.mkdir()
        for entry in (*OURS.glob("setuptools*"), OURS / "_distutils_hack"):
            (there / entry.name).symlink_to(entry)
        (self.site / "borrowed.pth").write_text(f"{there}\n")

    def run(self, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, shell=True, cwd=folder, env=self.variables(), capture_output=True, text=True, timeout=100, check=False
        )

    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return kept | {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip's own riddle: it is the value of build_isolation
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def borrow_dependencies(self) -> None:
        """After the installation, which would find an nsq-workers there. The .pth file of that is not read from this one."""
        (self.site / "dependencies.pth").write_text(f"{OURS}\n")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Into it was installed from a copy of the clone, by the README's command."""
    clone, made = tmp_path_factory.mktemp("clone"), Environment(tmp_path_factory.mktemp("environment"))
    copy_to(clone)
    done = made.run(INSTALL, clone)
    assert done.returncode == 0, done.stdout + done.stderr
    made.borrow_dependencies()
    return made


def copy_to(clone: Path) -> None:
    """What of the clone matters to its installation."""
    for entry in (*SHIPPED, COMMAND, "workers", "examples", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / entry).is_dir():
            shutil.copytree(ROOT / entry, clone / entry, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / entry, clone)


def installed(environment: Environment) -> set[str]:
    (record,) = environment.site.glob("nsq_workers-*.dist-info/RECORD")
    files = {line.split(",")[0] for line in record.read_text().splitlines()}
    return {file for file in files if ".dist-info/" not in file and "__pycache__" not in file}


def test_it_ships_the_framework_and_the_plugins_and_nothing_else(environment: Environment) -> None:
    sources = {
        str(file.relative_to(ROOT))
        for name in SHIPPED
        for file in (ROOT / name).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert "framework/py.typed" in sources
    assert installed(environment) == sources | {COMMAND, "../../../bin/workers"}


def test_nothing_of_the_clone_can_be_imported_by_accident(environment: Environment, tmp_path: Path) -> None:
    for name in ("workers", "examples", "tests", "benchmarks"):
        done = environment.run(f"python -c 'import {name}'", tmp_path)
        assert f"No module named '{name}'" in done.stderr
    done = environment.run("python -c 'import framework; print(framework.__file__)'", tmp_path)
    assert done.stdout.startswith(str(environment.site)), done.stderr


def test_the_command_and_the_plugin_are_there(environment: Environment, tmp_path: Path) -> None:
    done = environment.run("workers --help", tmp_path)
    assert "Run the handlers of modules until told to stop." in done.stdout, done.stderr
    (tmp_path / "test_one.py").write_text("def test_one(broker, worker): assert broker.topics() == set()\n")
    done = environment.run("python -m pytest -q -p no:cacheprovider test_one.py", tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.fixture
def worker(environment: Environment, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    (tmp_path / "hello.py").write_text(HELLO)
    log = tmp_path / "log"
    addresses = f"--nsqd-tcp-address 127.0.0.1:{free_port()} --nsqd-http-address 127.0.0.1:0"
    with log.open("w") as out:
        process = subprocess.Popen(
            f"exec workers run hello {addresses}", shell=True, cwd=tmp_path, env=environment.variables(),
            stdout=out, stderr=out, text=True,
        )  # fmt: skip
    yield process, log
    process.kill()
    process.wait()


def test_a_hello_world_runs(environment: Environment, worker: tuple[subprocess.Popen[str], Path], tmp_path: Path) -> None:
    process, log = worker
    until = time.monotonic() + DEADLINE
    published = None
    while "hello, world" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        if published is None and "ready" in log.read_text():
            published = environment.run("echo world | workers publish greetings", tmp_path)
            assert published.returncode == 0, published.stderr
        time.sleep(0.05)
    process.terminate()
    assert process.wait(30) == 0


@pytest.mark.long_run
def test_the_tutorials_installation_has_all_that_its_steps_need(tmp_path: Path) -> None:
    """Offline: pytest, honcho and what builds are those of the tests, and pip finds them installed."""
    (text,) = (block.text for block in blocks(ROOT / "docs" / "tutorial.md") if "pip install" in block.text)
    commands = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    clone, borrowed = tmp_path / "clone", tmp_path / "borrowed"
    for folder in (clone, borrowed):
        folder.mkdir()
    copy_to(clone)
    for entry in (
        one for name in ("setuptools*", "_distutils_hack", "honcho*", "pytest", "pytest-*", "_pytest") for one in OURS.glob(name)
    ):
        (borrowed / entry.name).symlink_to(entry)
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    offline = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "\n".join(
        ["set -e", *commands, "command -v workers", f"echo {OURS} > $(echo .venv/lib/python*/site-packages)/ours.pth"]
    )
    script = (
        script.replace("/path/to/the/clone", str(clone))
        + "\nworkers --help\npython -m pytest --version\npython -m honcho version"
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**bare, **offline, "PATH": path, "PYTHONPATH": str(borrowed)},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert f"{tmp_path}/shop-project/.venv/bin/workers" in said
    assert "Run the handlers of modules until told to stop." in said
    assert "pytest 9" in said or "pytest 8" in said
