"""A block that says `run by:` names tests that there are, each of which takes the block from the page and holds no copy of it.

What a test takes from where is read from its code: the test, and what it uses of its own file, fixtures included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from framework.testing.servers import ROOT
from tests.house.pages import PAGES, Block, blocks

BLOCKS = [block for page in PAGES for block in blocks(page) if block.run_by]
Names = dict[str, ast.stmt]


@cache
def defined(file: Path) -> Names:
    """What stands at the top of a test's file, by each name that it gives."""
    found: Names = {}
    for one in ast.parse(file.read_text()).body:
        if isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            found[one.name] = one
        else:
            stored = (node for node in ast.walk(one) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
            found.update({name.id: one for name in stored})
    return found


def used(names: Names, name: str) -> list[ast.stmt]:
    """The definition of ``name``, and those of all that it uses."""
    seen: dict[str, ast.stmt] = {}
    left = [name]
    while left:
        name = left.pop()
        if name in names and name not in seen:
            seen[name] = names[name]
            nodes = list(ast.walk(names[name]))
            left += [node.id for node in nodes if isinstance(node, ast.Name)]
            left += [node.arg for node in nodes if isinstance(node, ast.arg)]
    return list(seen.values())


def texts(name: str, names: Names) -> set[str]:
    """Every string that ``name`` and what it uses have in them."""
    nodes = (node for one in used(names, name) for node in ast.walk(one))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def copied(block: Block, held: set[str]) -> list[str]:
    """Its commands, and its code as a whole, as far as they are among the strings."""
    commands = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    return [one for one in (*commands, block.text.strip()) if any(one == text.strip() for text in held)]


def complaints(block: Block) -> Iterator[str]:
    """Why the block is not run as it says; nothing where it is."""
    file, _, tests = block.run_by.partition("::")
    for test in tests.split(", ::"):
        names = defined(ROOT / file)
        if not (test.startswith("test_") and test in names):
            yield f"{file} has no test {test!r}"
            continue
        held = texts(test, names)
        if not any(text.endswith(block.page.name) for text in held):
            yield f"{test} does not read {block.page.name}"
        yield from (f"{test} has a copy of {one!r}" for one in copied(block, held))


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_who_is_said_to_run_a_block_takes_it_from_its_page(block: Block) -> None:
    assert list(complaints(block)) == []


README = ROOT / "README.md"
HERE = "tests/house/test_run_by.py"


def holds_a_copy() -> None:
    assert (README, "workers run shop") != ("README.md", "")


test_of_this_page_by_a_copy = holds_a_copy


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("tests/house/test_readme.py", "has no test ''"),
        (f"{HERE}::complaints", "has no test 'complaints'"),
        ("tests/house/test_readme.py::test_that_nobody_wrote", "has no test 'test_that_nobody_wrote'"),
        (f"{HERE}::test_who_is_said_to_run_a_block_takes_it_from_its_page", "does not read elsewhere.md"),
        (f"{HERE}::test_of_this_page_by_a_copy", "has a copy of 'workers run shop'"),
    ],
)
def test_a_mark_that_is_not_true_is_noticed(mark: str, words: str) -> None:
    page = README if "copy" in mark else ROOT / "docs" / "elsewhere.md"
    block = Block(page, 1, "console", "$ workers run shop\n", run_by=mark)
    assert any(words in complaint for complaint in complaints(block))
