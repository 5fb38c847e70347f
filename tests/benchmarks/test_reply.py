"""The benchmark of request and reply measures what it says: each request is answered, by who should."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from framework.testing.servers import ServerMissing
from tests.conftest import missing

sys.path.append(str(Path(__file__).parents[2]))  # they are part of the project, not of the package
from benchmarks import reply

pytestmark = pytest.mark.real


def test_requests_are_timed_and_without_a_peer_nobody_answers():
    try:
        with reply.server("2.15") as (running, port):
            asker = reply.Asker(running)
            with pytest.raises(LookupError, match="nobody answers"):
                asker.ask()
            asker.close()
            found = reply.run(running, port, "ours", 20)
    except ServerMissing as error:
        missing(str(error))
    assert len(found) == 20
    assert 0 < reply.at(found, 0.5) <= reply.at(found, 0.99)
