"""The written invariants of the embedded nsqd's storage are held to the tests: each names some, and these exist."""

from __future__ import annotations

import ast
import re

from framework.testing.servers import ROOT

PAGE = (ROOT / "framework" / "nsqd" / "store" / "INVARIANTS.md").read_text()
NAMED = re.compile(r"`(test_\w+\.py)::(\w+)`")


def invariants() -> dict[int, str]:
    """The text of each, by its number."""
    parts = re.split(r"^(\d+)\. ", PAGE, flags=re.M)
    return dict(zip(map(int, parts[1::2]), parts[2::2], strict=True))


def names(file: str) -> set[str]:
    """The tests of a file, state machines included."""
    tree = ast.parse((ROOT / "tests" / "nsqd" / file).read_text())
    made = {
        target.id for one in tree.body if isinstance(one, ast.Assign) for target in one.targets if isinstance(target, ast.Name)
    }
    return made | {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}


def test_each_invariant_names_a_test() -> None:
    found = invariants()
    assert list(found) == list(range(1, len(found) + 1))
    assert [number for number, text in found.items() if not NAMED.search(text)] == []


def test_each_test_that_is_named_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 40
    assert [f"{file}::{name}" for file, name in named if name not in names(file)] == []


def test_the_page_is_found_from_the_code() -> None:
    assert "INVARIANTS.md" in (ROOT / "framework" / "nsqd" / "store" / "store.py").read_text()
