"""How ``equivalent.txt`` names a mutant: it is known again when lines move, and an entry excuses no other.

``path function | lines before ==> lines after``. The function has the classes and functions around it before its name. Where the
same lines stand in it more than once, ``#2`` says that the second are meant. Nothing of cosmic-ray is needed here, so that each
test run can look at the entries."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

_MODULE = "<module>"
_MOST = 12
"""Lines that one mutant changes, at most."""


class Entry(NamedTuple):
    """What a key consists of."""

    path: str
    scope: str
    number: int
    """1 for the first such lines in the scope."""
    before: str
    after: str

    def __str__(self) -> str:
        number = f" #{self.number}" if self.number > 1 else ""
        return f"{self.path} {self.scope}{number} | {self.before} ==> {self.after}"

    def stands_in(self, text: str) -> bool:
        """Whether the file, which reads ``text``, has the lines that the entry is about."""
        return len(_places(text, self.scope, self.before)) >= self.number


def entry(path: str, original: str, mutated: str) -> Entry:
    """Of the mutant of the file at ``path``, which read ``original``, by which it reads ``mutated``."""
    old, new = original.splitlines(), mutated.splitlines()
    shorter = min(len(old), len(new))
    first = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    behind = next((at for at in range(shorter - first) if old[-1 - at] != new[-1 - at]), shorter - first)
    before, after = _squeezed(old[first : len(old) - behind]), _squeezed(new[first : len(new) - behind])
    scope = _scopes(original)[first]
    return Entry(path, scope, _places(original, scope, before).index(first) + 1, before, after)


def read(file: Path) -> list[Entry]:
    """The lines of the file that are no comments. Raises ValueError for one that is no key."""
    return [_parsed(line) for line in file.read_text().splitlines() if line.strip() and not line.startswith("#")]


def _parsed(key: str) -> Entry:
    found = re.fullmatch(r"(\S+) (\S+)(?: #(\d+))? \| (.+) ==> (.+)", key)
    if found is None:
        raise ValueError(f"{key!r} is not 'path function | lines before ==> lines after'")
    path, scope, number, before, after = found.groups()
    return Entry(path, scope, int(number or 1), before, after)


def _places(text: str, scope: str, wanted: str) -> list[int]:
    """Where the lines are that read ``wanted``, from 0, of those whose first is directly in ``scope``."""
    lines = text.splitlines()
    inside = [at for at, one in enumerate(_scopes(text)) if one == scope and lines[at].strip()]
    return [at for at in inside if wanted in (_squeezed(lines[at:end]) for end in range(at + 1, at + 1 + _MOST))]


def _scopes(text: str) -> list[str]:
    """The innermost function or class of each line, with those around it."""
    found = [_MODULE] * len(text.splitlines())

    def walk(node: ast.AST, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = around
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{around}.{child.name}".lstrip(".")
                for line in range(child.lineno, (child.end_lineno or child.lineno) + 1):
                    found[line - 1] = name
            walk(child, name)

    walk(ast.parse(text), "")
    return found


def _squeezed(lines: list[str]) -> str:
    """One line, with single blanks."""
    return " ".join(" ".join(lines).split())
