"""The core of the conformance suite, and its leases, over the example of a transport of one's own, not installed here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framework.testing.conformance import Core, Leases, Subject
from tests.conformance.directories import Directories


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with Directories(tmp_path_factory.mktemp("directories")) as made:
        yield made


class TestDirectory(Core, Leases):
    """What even the smallest transport passes."""
