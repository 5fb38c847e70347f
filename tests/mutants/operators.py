"""The kinds of mutants: a chosen few of cosmic-ray's, and the ones that it lacks and that slips of the hand look like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import parso
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import get_operator

_SIMPLE = (
    "AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "NumberReplacer",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop", "ExceptionReplacer",
    "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub",
)  # fmt: skip
_COMPARISONS = (
    "Lt_LtE",
    "Lt_GtE",
    "LtE_Lt",
    "LtE_Gt",
    "Gt_GtE",
    "Gt_LtE",
    "GtE_Gt",
    "GtE_Lt",
    "Eq_NotEq",
    "NotEq_Eq",
    "Is_IsNot",
    "IsNot_Is",
)
_ARITHMETIC = (
    "Add_Sub",
    "Sub_Add",
    "Mul_Div",
    "Div_Mul",
    "FloorDiv_Mul",
    "Mod_Add",
    "BitAnd_BitOr",
    "BitOr_BitAnd",
    "LShift_RShift",
    "RShift_LShift",
)
_SWAPS = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "append": "appendleft",
    "appendleft": "append",
    "popleft": "pop",
}


class LeaveOutStatement(Operator):  # type: ignore[misc]
    """A call, an assignment to what outlives the function, ``raise`` or ``del`` becomes ``pass``."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "simple_stmt" and _matters(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        left_out = node.children[0]
        nothing = parso.python.tree.Keyword("pass", left_out.start_pos, prefix=left_out.get_first_leaf().prefix)
        nothing.parent = node
        node.children[0] = nothing
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return Example("f(x)\n", "pass\n"), Example("self.x = 1\n", "pass\n"), Example("raise E\n", "pass\n")


def _matters(statement: Any) -> bool:
    if statement.type in ("raise_stmt", "del_stmt"):
        return True
    if statement.type == "expr_stmt":
        target = statement.children[0]
        outlives = target.type in ("atom_expr", "power")  # an attribute, or an item
        grows = len(statement.children) == 3 and getattr(statement.children[1], "value", "=") not in ("=", ":")
        return outlives or grows
    return statement.type in ("atom_expr", "power") and statement.children[-1].type == "trailer"


class OtherWayRound(Operator):  # type: ignore[misc]
    """``min`` becomes ``max``, ``in`` becomes ``not in``, ``popleft`` becomes ``pop``."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if (node.type == "name" and node.value in _SWAPS and not _keyword_argument(node)) or _is_membership(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        if node.type == "name":
            return parso.python.tree.Name(_SWAPS[node.value], node.start_pos, prefix=node.prefix)
        operator = node.children[1]
        word = "not in" if operator.type == "keyword" else "in"
        node.children[1] = parso.python.tree.Keyword(word, operator.start_pos, prefix=" ")
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return Example("min(a, b)", "max(a, b)"), Example("a in b", "a not in b"), Example("a not in b", "a in b")


def _is_membership(node: Any) -> bool:
    return node.type == "comparison" and node.children[1].get_code().split() in (["in"], ["not", "in"])


def _keyword_argument(node: Any) -> bool:
    return node.parent is not None and node.parent.type == "argument" and node.parent.children[0] is node


class LeaveOutCondition(Operator):  # type: ignore[misc]
    """One of the conditions between ``and`` or ``or`` is left out."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type in ("and_test", "or_test"):
            for operand in node.children[::2]:
                yield operand.start_pos, operand.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        first = max(0, 2 * index - 1)  # with the word before it, or, of the first, behind it
        del node.children[first : first + 2]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return Example("a and b", " b"), Example("a and b", "a", occurrence=1)


OWN: dict[str, Any] = {each.__name__: each() for each in (LeaveOutStatement, OtherWayRound, LeaveOutCondition)}


def operators() -> dict[str, Any]:
    """Name -> operator."""
    names = [*_SIMPLE, *(f"ReplaceComparisonOperator_{one}" for one in _COMPARISONS)]
    names += [f"ReplaceBinaryOperator_{one}" for one in _ARITHMETIC]
    found = {name: get_operator(f"core/{name}")() for name in names}
    return found | OWN
