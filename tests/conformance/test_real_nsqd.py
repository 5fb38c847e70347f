"""The conformance suite over the real nsqd, which goes down by SIGTERM: it keeps in memory what SIGKILL would lose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framework.testing.conformance import Subject, Suite
from framework.testing.servers import Server, ServerMissing, nsq_binary
from tests.conformance.endings import Endings
from tests.conformance.nsqds import Nsqds
from tests.conftest import missing

pytestmark = pytest.mark.real

#: Of all channels at once. It looks at the timeouts and delays of a new channel only after up to five seconds, come what may.
SCAN = "--queue-scan-selection-count=1000"


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    try:
        command = [str(nsq_binary("nsqd")), SCAN]
    except ServerMissing as error:
        missing(str(error))
        raise
    with Nsqds(command, lambda: tmp_path_factory.mktemp("nsqd"), Server.stop) as made:
        made.max_late += 5.0  # SCAN, of a new channel
        yield made


class TestRealNsqd(Suite, Endings):
    """Every chapter."""
