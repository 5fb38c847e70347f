"""What the job says while it waits: its last word of the lines counts all of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark_nsq import Lag
from workers.api_requests.stream import command
from workers.api_requests.stream.lookout import Lookout


def test_the_last_word_is_of_the_end_also_where_that_came_after_a_look() -> None:
    """A channel may do its last batch between the look at how far all are and the one at whether they have ended."""
    done, said = {"spam": {}}, []
    job: Any = SimpleNamespace(
        done=lambda: dict(done), behind=lambda: {} if done["spam"] else {"spam": Lag(1000, 65.4)}, late=lambda: 0,
        evidence=SimpleNamespace(tend=lambda: done.update(spam={"parsed": 1000})),
    )  # fmt: skip
    lookout = Lookout(job, lambda event, **words: said.append(words["waiting"]), SimpleNamespace(asked=False))  # type: ignore[arg-type]
    assert lookout.until(SimpleNamespace(running=list), lambda: bool(done["spam"]), None)  # type: ignore[arg-type]
    assert said == [{"spam": {"rows": 1000, "seconds": 65.4}}, {}]


def test_how_many_lines_were_rejected_is_said_as_they_are_done_like_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """Of an nsqd whose clock is years behind, or of a log of another format, these are all."""
    tell = command._teller(events=False)
    for rejected in ({}, {"rejected": 1500}):
        tell("lines", done={"archive": {"parsed": 20, **rejected}, "growth": {}}, waiting={}, late=0)
    assert capsys.readouterr().out.splitlines() == [
        "job: lines done: archive 20, growth 0",
        "job: lines done: archive 1,520, growth 0; rejected, and kept with the reasons: 1,500",
    ]
