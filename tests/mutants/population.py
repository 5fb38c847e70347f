"""Which mutants a file has: every place that an operator can change, but for those where nobody could tell."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.mutants.operators import operators

_LOGGING = {"log", "logger", "debug", "info", "warning", "error", "exception", "_log"}


class Mutant(NamedTuple):
    """One change of one file."""

    path: str
    line: int
    operator: str
    occurrence: int
    """The how manieth place of the file that the operator can change."""

    def text(self, original: str) -> str:
        """The file with the change. Raises ValueError where the operator makes none."""
        changed = mutate_code(original, operators()[self.operator], self.occurrence)
        if changed is None:
            raise ValueError(f"no such place: {self}")
        return str(changed)

    def compiles(self, original: str) -> bool:
        """Whether it is Python at all."""
        try:
            compile(self.text(original), self.path, "exec")
        except SyntaxError:
            return False
        except AttributeError:  # cosmic-ray's ExceptionReplacer knows no dotted name in a tuple
            return False
        return True


def sample(files: Iterable[str], root: Path, count: int, seed: int) -> list[Mutant]:
    """``count`` mutants of these files, or all. For one seed, a change of the code changes only what it touches."""
    lots: dict[bytes, Mutant] = {}
    for path in sorted(files):
        text = (root / path).read_text()
        alike: Counter[str] = Counter()
        for mutant in population(path, text):
            what = f"{path} {mutant.operator} {text.splitlines()[mutant.line - 1].strip()}"
            alike[what] += 1
            lots[sha256(f"{seed} {what} {alike[what]}".encode()).digest()] = mutant
    drawn = (lots[lot] for lot in sorted(lots))
    return sorted(islice((mutant for mutant in drawn if mutant.compiles((root / mutant.path).read_text())), count))


def population(path: str, text: str) -> Iterator[Mutant]:
    """Every mutant of the file whose change can be seen from outside."""
    unseen = _unseen(ast.parse(text))
    nodes = list(ast_nodes(get_ast(text)))
    for name, operator in operators().items():
        occurrence = 0
        for node in nodes:
            for start, end in operator.mutation_positions(node):
                if not _is_star(node) and not any(first <= start and end <= last for first, last in unseen):
                    yield Mutant(path, start[0], name, occurrence)
                occurrence += 1


def _is_star(node: Any) -> bool:
    """The ``*`` of a signature or a call, which looks like arithmetic."""
    return node.type == "operator" and node.parent.type in ("parameters", "param", "lambdef", "argument", "star_expr")


def _unseen(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """From where to where only a reader, the type checker or a benchmark would notice.

    Annotations, docstrings, what is logged, what an error says, ``TYPE_CHECKING``, ``zip(strict=True)``, which checks what cannot
    be, and the constants of modules and classes, which are tuned by measuring."""
    found = []
    for node in ast.walk(tree):
        found += [_span(each) for each in _parts_unseen(node)]
    return found


def _parts_unseen(node: ast.AST) -> Iterator[Any]:
    if isinstance(node, ast.Module | ast.ClassDef):
        yield from (each for each in node.body if not isinstance(each, ast.FunctionDef | ast.ClassDef | ast.If | ast.Try))
    if isinstance(node, ast.ClassDef):
        yield from (*node.bases, *(keyword.value for keyword in node.keywords), *node.decorator_list)
    if isinstance(node, ast.FunctionDef):
        yield from (*node.decorator_list, *([node.returns] if node.returns else []))
    if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
        yield node.annotation
    if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or _logs(node.value)):
        yield node
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield from node.exc.args
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        yield node
    if isinstance(node, ast.JoinedStr):
        yield node
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
        yield from (keyword.value for keyword in node.keywords)


def _logs(call: ast.expr) -> bool:
    if not isinstance(call, ast.Call):
        return False
    words = ast.unparse(call.func).split(".")
    return words[-1] in _LOGGING or words[0] in _LOGGING


def _span(node: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
