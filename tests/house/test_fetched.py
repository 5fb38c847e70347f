"""What the tests need beside Debian's packages is there before the first of them, in the order of ``tools/test``."""

from __future__ import annotations

from framework.testing.servers import ROOT, ServerMissing
from tests import fetched


def test_what_cannot_be_had_is_said_and_the_others_are_made(capsys):
    made = []

    def missing():
        raise ServerMissing("there is no `go` on the PATH")

    fetched.fetch([missing, lambda: made.append("jars")])
    assert made == ["jars"]
    assert "setup: there is no `go` on the PATH" in capsys.readouterr().err


def test_no_test_begins_before_its_server_is_there():
    """Beside seven others, with nothing compiled yet, an S3 gateway took longer than a test may."""
    steps = (ROOT / "tools" / "test").read_text()
    places = [steps.index(step) for step in (
        "tests.fetched fast", "tests.fetched slow &", 'begin "fast tests"', 'wait "$fetching"', 'begin "slow tests and Spark"',
    )]  # fmt: skip
    assert places == sorted(places)
