"""What is in README.md and docs/*.md: fenced blocks with their marks, links and headings. Reads text, runs nothing.

A block is run by ``story.py`` unless a comment on the line above it says who does, or why nobody can::

    <!-- run by: tests/house/test_readme.py::test_make_demo_reports_the_shipped_log_exactly -->
    <!-- not run: it needs a machine of its own -->

A block whose first line is ``# shop/handlers.py``, a comment with the name of a file and no more, is that file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from framework.testing.servers import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
LANGUAGES = ("console", "ini", "procfile", "python", "text", "toml", "yaml")

_FENCE = re.compile(r"( *)```(\w*)")
_MARK = re.compile(r" *<!-- (not run|run by): (.+) -->")
_FILE = re.compile(r"# (\S+\.(?:py|yaml|toml|service)|\S*Procfile)\n")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    """``docs/nsq.md``"""
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    """That of its fence, from 1."""
    language: str
    text: str
    not_run: str = ""
    """Why it cannot be run."""
    run_by: str = ""
    """The tests that run it: ``tests/house/test_readme.py::test_one, ::test_two``."""

    @property
    def file(self) -> str:
        """The file that the block is, relative to the folder of the reader's project; empty where it is none."""
        named = _FILE.match(self.text)
        if named is None:
            return ""
        return Path(named[1]).name if named[1].startswith("/") else named[1]

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line} ({self.language})"


def blocks(page: Path) -> Iterator[Block]:
    """Every fenced block of ``page``, in order."""
    lines = page.read_text().splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        begin, indent = number, fence[1]
        number = lines.index(indent + "```", begin + 1)
        text = "".join(f"{line.removeprefix(indent)}\n" for line in lines[begin + 1 : number])
        mark = _MARK.fullmatch(lines[begin - 1])
        marks = {} if mark is None else {mark[1].replace(" ", "_"): mark[2]}
        yield Block(page, begin + 1, fence[2], text, **marks)
        number += 1


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def codes(page: Path) -> list[str]:
    """What stands between backticks in the sentences of ``page``, each on one line."""
    return [" ".join(code.split()) for code in _CODE.findall(prose(page))]


def links(page: Path) -> list[str]:
    """Where the relative links of ``page`` lead, anchors included."""
    return [link for link in _LINK.findall(prose(page)) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """What may stand behind a # in a link to ``page``, as GitHub makes it of the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
