"""What a run without any mutant showed: which tests run which line, and how long each of them takes."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from pathlib import Path

from coverage import CoverageData

from tests.mutants.population import Mutant

_GRACE = 10.0
"""Seconds that any test may take, beside thrice those that it took before."""
_QUICK = 1.0
"""Seconds; those tests that take longer come after all that do not."""


class Lines:
    """Of the run in ``folder``, a copy of the house."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seconds: dict[str, float] = {}
        """In the order in which they ran."""
        self._around: dict[str, float] = {}
        """File -> what setting up and tearing down takes at the most: whoever comes first or last does it for all."""
        self.failed: list[str] = []
        """The tests that fail without any mutant."""
        self._starters: set[str] = set()
        """The files of the tests that start processes of Python; one may do so in a fixture that others of its file share."""
        for file in folder.glob(".learned.*"):
            for test, (seconds, around, passed, starts) in json.loads(file.read_text()).items():
                self._seconds[test] = seconds
                self._around[_file(test)] = max(around, self._around.get(_file(test), 0.0))
                if not passed:
                    self.failed.append(test)
                if starts:
                    self._starters.add(_file(test))
        self._data = [_data(file) for file in folder.glob(".coverage.*")]

    def __len__(self) -> int:
        return len(self._seconds)

    def leave_out(self, test: str) -> None:
        """It cannot judge."""
        self._seconds.pop(test, None)

    def limit(self, test: str) -> float:
        """Seconds after which ``test`` is said to stand still."""
        return 3 * (self._seconds.get(test, 0.0) + self._around.get(_file(test), 0.0)) + _GRACE

    def order(self, mutant: Mutant, original: str, places: Sequence[str]) -> list[str]:
        """The tests of ``places`` that may run the mutant's statement, of the file that reads ``original``.

        First those that do. Then those that start processes, which may do so unseen; all the others as well where no test was
        seen to run it, or something else was: an import, a thread. Of each kind the quick ones first, one file after the other,
        as they share a server or two."""
        runners = self._runners(mutant, original) or {""}
        every = [test for test in self._seconds if test.startswith(tuple(places))]
        may = [test for test in every if test in runners or "" in runners or _file(test) in self._starters]

        def kind(test: str) -> tuple[bool, bool]:
            return test not in runners, self._seconds[test] > _QUICK

        alike: dict[object, list[float]] = {}
        for test in may:
            alike.setdefault((*kind(test), _file(test)), []).append(self._seconds[test])
        mean = {some: sum(seconds) / len(seconds) for some, seconds in alike.items()}
        return sorted(may, key=lambda test: (*kind(test), mean[(*kind(test), _file(test))], _file(test)))

    def _runners(self, mutant: Mutant, original: str) -> set[str]:
        wanted = set(_statement(original, mutant.line))
        found: set[str] = set()
        for data in self._data:
            by_line = data.contexts_by_lineno(str(self._folder / mutant.path))
            found.update(test for line in wanted & by_line.keys() for test in by_line[line])
        return found


def _file(test: str) -> str:
    return test.partition("::")[0]


def _data(file: Path) -> CoverageData:
    data = CoverageData(str(file))
    data.read()
    return data


def _statement(text: str, line: int) -> range:
    """The lines of the innermost statement at ``line``, without those of the statements in it."""
    around = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt) and _reaches(node, line)]
    node = max(around, key=lambda one: one.lineno)
    body = getattr(node, "body", None)
    return range(node.lineno, body[0].lineno if body and body[0].lineno > node.lineno else (node.end_lineno or line) + 1)


def _reaches(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
