"""The core of the conformance suite over the example of a transport of one's own, which is not installed here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from framework.testing.conformance import Core, Node, Subject

FILE = Path(__file__).parents[2] / "examples" / "directory_broker" / "directory_broker.py"


class DirectoryNode(Node):
    def __init__(self, folder: Path) -> None:
        self.url = f"dir://{folder}"

    def up(self) -> None:
        """A folder is there."""

    def down(self) -> None:
        """It stays."""


class Directories(Subject):
    wrong_urls = ("dir://relative/path", "dir:///path?nope=1")

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._numbers = folder, itertools.count(1)
        spec = spec_from_file_location("directory_broker", FILE)
        assert spec is not None
        assert spec.loader is not None
        self._module: Any = module_from_spec(spec)
        spec.loader.exec_module(self._module)

    def make(self, *, brief: bool) -> Node:
        return DirectoryNode(self._folder / f"node-{next(self._numbers)}")

    def open(self, urls: Sequence[str]) -> Any:
        return self._module.DirectoryTransport(urls)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with Directories(tmp_path_factory.mktemp("directories")) as made:
        yield made


class TestDirectory(Core):
    """What even the smallest transport passes."""
