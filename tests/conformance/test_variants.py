"""The suite notices what it is there for: each broken variant of a transport fails in the case that is named for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framework.testing.conformance import Bench
from tests.conformance.directories import Directories
from tests.conformance.variants import VARIANTS, Variant

PATIENCE = 1.5
"""Seconds after which a case gives up here on what never comes."""
LATE = 5.5
"""The same for what comes late: longer than a delay and ``max_late``, which are to find it."""


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_broken_variant_fails_in_its_case(variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(variant, variant.change, tmp_path, monkeypatch) != ""


@pytest.mark.parametrize("variant", [one for one in VARIANTS if one.control], ids=str)
def test_what_such_a_variant_declares_can_be_kept(variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert variant.control is not None
    assert verdict(variant, variant.control, tmp_path, monkeypatch) == ""


def test_there_are_variants_enough_and_most_die_in_the_core() -> None:
    assert len(VARIANTS) >= 35
    assert sum(variant.chapter.__name__ == "Core" for variant in VARIANTS) > 0.8 * len(VARIANTS)


def verdict(variant: Variant, change: Callable[[Any], None], folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the case said of the changed module; empty: it passed."""
    with Directories(folder, change) as subject:
        bench = Bench(subject, folder)
        bench.patience = LATE if "late" in str(variant) or "longer" in str(variant) else PATIENCE
        given = {"bench": bench, "subject": subject, "monkeypatch": monkeypatch, **variant.arguments}
        case = getattr(variant.chapter(), variant.case)
        wanted = {name: given[name] for name in inspect.signature(case).parameters}
        said = ""
        for step in (lambda: case(**wanted), bench.close):
            try:
                step()
            except (Exception, pytest.fail.Exception) as error:
                said = said or repr(error)
        return said
