"""The benchmark of the engine on the broker in memory runs, and every message is accounted for."""

from __future__ import annotations

import pytest

from benchmarks import memory


@pytest.mark.parametrize("how", [[], ["--publish"]])
def test_the_engine_is_measured(how, capsys):
    memory.main(["--rounds", "1", "--messages", "5000", *how])
    said = capsys.readouterr().out
    assert "k msg/s" in said
    assert "us of CPU a message" in said
