"""Which test files are nearest to a module: those that bear its name come first, then those with the fewest imports between.

It is known without running anything, and is a guess: most mutants die in these files, and only for those that live there must
all tests be run once, to see which of them run what line."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

_FILES = 12
"""How many test files are near. Those behind them come into play where all before them pass, and the time is limited."""


def nearest(root: Path, path: str, places: Sequence[str]) -> list[str]:
    """The test files of ``places`` that are nearest to the module at ``path``, the nearest first. Paths are those in ``root``.

    Where few import it, however indirectly, as of a plugin that is found by its name, others of the first place fill up."""
    far, stem = _distances(root, path), Path(path).stem
    others = [str(file.relative_to(root)) for file in (root / places[0]).glob("test_*.py")]
    found = [file for file in {*far, *others} if _is_tests(file) and file.startswith(tuple(places))]
    return sorted(found, key=lambda file: (stem not in Path(file).stem, far.get(file, len(far)), file))[:_FILES]


def _is_tests(file: str) -> bool:
    return Path(file).name.startswith("test_")


def _distances(root: Path, path: str) -> dict[str, int]:
    """File -> how many imports lie between it and ``path``, where any do."""
    users, found, edge = _users(root), {path: 0}, {path}
    while edge:
        distance = max(found.values()) + 1
        edge = {user for one in edge for user in users.get(one, ())} - found.keys()
        found.update(dict.fromkeys(edge, distance))
    return found


@cache
def _users(root: Path) -> dict[str, set[str]]:
    """File -> the files that import it."""
    found: dict[str, set[str]] = {}
    for folder in ("framework", "tests"):
        for file in sorted((root / folder).rglob("*.py")):
            for imported in _imported(root, file):
                found.setdefault(imported, set()).add(str(file.relative_to(root)))
    return found


def _imported(root: Path, file: Path) -> Iterator[str]:
    """What the file imports of ours, and, of tests, what pytest imports for them."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    for name in names:
        place = name.replace(".", "/")
        yield from (one for one in (f"{place}.py", f"{place}/__init__.py") if (root / one).is_file())
    if _is_tests(str(file)) and (file.parent / "conftest.py").is_file():
        yield str((file.parent / "conftest.py").relative_to(root))
