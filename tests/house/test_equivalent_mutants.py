"""What ``make mutants`` leaves out is named so that it is that one mutant, and goes when its line goes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import keys

ROOT = Path(__file__).parents[2]
EQUIVALENT = ROOT / "tests/mutants/equivalent.txt"
CODE = """
LIMIT = 1


class Writer:
    def begin(self):
        self.wake.acquire()
        self.asleep = False

    def run(self):
        self.asleep = False
        if self.items | self.more:
            self.asleep = False

        def inner():
            self.wake.acquire()
"""


def test_each_entry_is_of_lines_that_are_there() -> None:
    gone = [str(one) for one in keys.read(EQUIVALENT) if not one.stands_in((ROOT / one.path).read_text())]
    assert gone == [], "the code has changed: is it still so, and of which lines?"


def test_none_is_there_twice() -> None:
    assert [one for one, times in Counter(keys.read(EQUIVALENT)).items() if times > 1] == []


def broken(line: str, number: int, by: str) -> keys.Entry:
    """The entry of the mutant whose ``number``-th such line, from 1, becomes ``by``."""
    lines = CODE.splitlines()
    at = [at for at, one in enumerate(lines) if one.strip() == line][number - 1]
    lines[at] = lines[at].replace(line, by)
    return keys.entry("writer.py", CODE, "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("line", "number", "by", "key"),
    [
        ("LIMIT = 1", 1, "LIMIT = 2", "writer.py <module> | LIMIT = 1 ==> LIMIT = 2"),
        ("self.wake.acquire()", 1, "pass", "writer.py Writer.begin | self.wake.acquire() ==> pass"),
        ("self.wake.acquire()", 2, "pass", "writer.py Writer.run.inner | self.wake.acquire() ==> pass"),
        ("self.asleep = False", 1, "self.asleep = True", "writer.py Writer.begin | self.asleep = False ==> self.asleep = True"),
        ("self.asleep = False", 2, "pass", "writer.py Writer.run | self.asleep = False ==> pass"),
        ("self.asleep = False", 3, "pass", "writer.py Writer.run #2 | self.asleep = False ==> pass"),
        (
            "if self.items | self.more:", 1, "if self.items & self.more:",
            "writer.py Writer.run | if self.items | self.more: ==> if self.items & self.more:",
        ),
    ],
)  # fmt: skip
def test_the_same_line_elsewhere_is_another_mutant(line: str, number: int, by: str, key: str) -> None:
    made = broken(line, number, by)
    assert str(made) == key
    assert made.stands_in(CODE)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "equivalent.txt"
    every = [broken("self.asleep = False", 3, "pass"), broken("if self.items | self.more:", 1, "if self.items & self.more:")]
    file.write_text("# why\n\n" + "".join(f"{one}\n" for one in every))
    assert keys.read(file) == every


def test_an_entry_whose_lines_are_gone_is_noticed() -> None:
    made = broken("self.asleep = False", 3, "pass")
    assert not made.stands_in(CODE.replace("            self.asleep = False\n", "            pass\n"))
    assert not made.stands_in(CODE.replace("def run", "def work"))


@pytest.mark.parametrize("text", ["a.py | before ==> after", "a.py f | before", "a.py f before ==> after"])
def test_what_is_no_key_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "equivalent.txt").write_text(text)
    with pytest.raises(ValueError, match="is not 'path function"):
        keys.read(tmp_path / "equivalent.txt")
