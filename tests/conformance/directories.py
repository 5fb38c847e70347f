"""The example of a transport of one's own as a Subject, with leases of a second where a case wants them short."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from framework.testing.conformance import Node, Subject
from framework.transports.contract import Limits

FILE = Path(__file__).parents[2] / "examples" / "directory_broker" / "directory_broker.py"
BRIEF = "brief"


class DirectoryNode(Node):
    def __init__(self, folder: Path) -> None:
        self.url = f"dir://{folder}"

    def up(self) -> None:
        """A folder is there."""

    def down(self) -> None:
        """It stays."""


class Directories(Subject):
    """``change``: what is done to the example's module before it is used, for broken variants of it."""

    wrong_urls = ("dir://relative/path", "dir:///path?nope=1")

    def __init__(self, folder: Path, change: Callable[[Any], None] = lambda module: None) -> None:
        super().__init__()
        self._folder, self._numbers = folder, itertools.count(1)
        self._modules = {brief: load(self.brief if brief else 60.0) for brief in (False, True)}
        for module in self._modules.values():
            change(module)

    def make(self, *, brief: bool) -> Node:
        return DirectoryNode(self._folder / f"{BRIEF if brief else 'node'}-{next(self._numbers)}")

    def open(self, urls: Sequence[str]) -> Any:
        return self._modules[f"/{BRIEF}-" in urls[0]].DirectoryTransport(urls)


def load(lease: float) -> Any:
    """The example's module, with leases of ``lease`` seconds."""
    spec = spec_from_file_location("directory_broker", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.LIMITS = module.DirectoryConnection.limits = Limits(lease=lease, max_lease=float("inf"), max_grant=1000)  # type: ignore[attr-defined]
    return module
