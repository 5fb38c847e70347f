"""Prometheus's text format for samples of the same labels: a line each, and a few that say what a metric is. No I/O.

``prometheus_client`` takes up to a millisecond for the lines of a handler, in one go; here they take a tenth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

_WRITTEN_OUT = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def labels(names: Sequence[str], values: Iterable[str]) -> str:
    """What stands between the braces."""
    return ",".join(f'{name}="{value.translate(_WRITTEN_OUT)}"' for name, value in zip(names, values, strict=True))


def head(name: str, kind: str, words: str) -> str:
    """Before the samples. ``words`` have no line feed and no backslash."""
    return f"# HELP {name} {words}\n# TYPE {name} {kind}\n"


def sample(name: str, of: str, value: float) -> str:
    """``of``: its ``labels``."""
    return f"{name}{{{of}}} {value}\n" if of else f"{name} {value}\n"


def histogram(name: str, of: str, ends: Sequence[str], counts: Iterable[int], sum_: float) -> str:
    """``ends``: what precedes each count, as ``bounds`` made it. ``counts``: of each bucket, those of others not included."""
    found = list(accumulate(counts))
    begin = f"{name}_bucket{{{of},le="
    lines = "".join([f"{begin}{end}{count}\n" for end, count in zip(ends, found, strict=True)])
    return f"{lines}{name}_count{{{of}}} {found[-1]}\n{name}_sum{{{of}}} {sum_}\n"


def bounds(values: Iterable[float]) -> list[str]:
    """For ``histogram``: how far each bucket reaches; the last has no bound."""
    return [f'"{name}"}} ' for name in (*(f"{value:g}" for value in values), "+Inf")]
