"""The example of a transport of one's own passes the core of the conformance suite, and installed it serves every verb."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from framework.testing.conformance import Core, Node, Subject
from framework.testing.workers import call, working

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "directory_broker"


def load(file: Path) -> ModuleType:
    """The module of that file, which is not on the path."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Folder(Node):
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.url = f"dir://{self._folder.name}"

    def up(self) -> None: ...

    def down(self) -> None:
        self._folder.cleanup()


class Directories(Subject):
    wrong_urls = ("dir://host/path", "dir:///tmp/queue?lease=5")

    def __init__(self) -> None:
        super().__init__()
        self._module = load(EXAMPLE / "directory_broker.py")

    def make(self, *, brief: bool) -> Folder:
        return Folder()

    def open(self, urls: Sequence[str]) -> Any:
        return self._module.DirectoryTransport(urls)


class TestDirectories(Core):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls) -> Iterator[Directories]:
        with Directories() as subject:
            yield subject


def test_it_fits_in_150_lines() -> None:
    assert len((EXAMPLE / "directory_broker.py").read_text().splitlines()) < 150


def install(folder: Path) -> None:
    """What pip leaves of the example: its module, and its entry points in the metadata."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    (scheme,) = project["entry-points"]["workers.transports"].items()
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (info / "entry_points.txt").write_text("[workers.transports]\n{} = {}\n".format(*scheme))
    shutil.copy(EXAMPLE / "directory_broker.py", folder)


def test_installed_beside_the_framework_it_serves_every_verb(tmp_path: Path) -> None:
    install(tmp_path / "installed")
    env = {"PYTHONPATH": str(tmp_path / "installed"), "BROKER_URL": f"dir://{tmp_path}/queue"}
    checked = call("check", "examples.hello", cwd=ROOT, env=env)
    assert (checked.returncode, "a directory: a lease is 60 s" in checked.stdout) == (0, True), checked
    published = call("publish", "greetings", cwd=ROOT, env=env, stdin=b"world\n")
    assert published.returncode == 0, published
    with working("run", "examples.hello", cwd=ROOT, env=env) as worker:
        worker.wait_for("hello, world")
        assert worker.stop() == 0
    assert not list((tmp_path / "queue" / "greetings").iterdir())
