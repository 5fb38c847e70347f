"""What the suite leaves out or does less often is in ``make chaos``: no case is in neither."""

from __future__ import annotations

import re

import pytest

from framework.testing.servers import ROOT
from tests.chaos import __main__ as chaos

MARKED, SHORTENED = chaos._AT_LENGTH
SETTINGS = re.compile(r'environ\.get\("([A-Z_]+(?:KILLS|ROUNDS|INPUTS|FLIPS|EXAMPLES|LENGTH))"')


def settings(text: str) -> set[str]:
    """What of its environment says how long a test is."""
    shared = {"AT_LENGTH"} if re.search(r"^from tests\.conftest import .*\bAT_LENGTH\b", text, re.M) else set()
    return shared | set(SETTINGS.findall(text))


TEXTS = {str(file.relative_to(ROOT)): file.read_text() for file in (ROOT / "tests").rglob("test_*.py")}
LENGTHS = {file: settings(text) for file, text in TEXTS.items()}


def test_what_is_marked_is_looked_for_in_all_tests() -> None:
    assert MARKED == ["-m", "at_length or long_run", "tests"]


@pytest.mark.parametrize("file", [file for file, found in LENGTHS.items() if found])
def test_what_is_shortened_is_run_at_its_full_length(file: str) -> None:
    assert file in SHORTENED or re.search(r"^pytestmark = .*\bpytest\.mark\.long_run\b", TEXTS[file], re.M)
    assert LENGTHS[file] <= chaos._LENGTHS.keys()


def test_no_length_is_asked_for_in_vain() -> None:
    assert set().union(*LENGTHS.values()) == chaos._LENGTHS.keys()
