"""What a forked child forgets of its parent, in which order."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import framework
from framework.forked import Step, forget_in_child, living


class Noting:
    def __init__(self, notes: list[str], word: str, *, fails: bool = False) -> None:
        self._note, self._fails = lambda: notes.append(word), fails

    def forget(self) -> None:
        self._note()
        if self._fails:
            raise RuntimeError("this one fails, and is shown")


def in_a_child(say: Callable[[], str]) -> str:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, say().encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return said


def test_a_child_forgets_step_by_step_whatever_was_made_first() -> None:
    notes: list[str] = []
    made = [Noting(notes, step.name) for step in reversed(Step)]
    for one, step in zip(made, reversed(Step), strict=True):
        forget_in_child(one, step)
    assert in_a_child(lambda: " ".join(notes)) == "WRITING QUEUED SIGNALS THREADS CONNECTIONS"
    assert notes == []  # of the parent nothing is forgotten


def test_one_that_fails_keeps_no_other() -> None:
    notes: list[str] = []
    made = [Noting(notes, str(number), fails=True) for number in range(3)]
    for one in made:
        forget_in_child(one)
    assert sorted(in_a_child(lambda: " ".join(notes)).split()) == ["0", "1", "2"]


def test_what_has_gone_is_not_asked() -> None:
    one = Noting([], "gone")
    forget_in_child(one)
    assert one in living()
    before = len(living())
    del one
    assert len(living()) < before


def test_there_is_one_registry() -> None:
    folder = Path(framework.__file__).parent
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if "register_at_fork(" in path.read_text()]
    assert found == ["forked.py"]
