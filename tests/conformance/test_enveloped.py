"""Publishing to brokers that carry no headers, and are told to have them in envelopes: as any other broker, with headers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from framework.testing.conformance import Publishing, Subject
from framework.testing.servers import Server, ServerMissing, nsq_binary
from framework.transports import open_transports
from tests.conformance.nsqds import Nsqds
from tests.conformance.test_beanstalkd import Beanstalkds
from tests.conformance.test_real_nsqd import SCAN
from tests.conftest import missing

pytestmark = pytest.mark.real


def with_headers(urls: Sequence[str]) -> Any:
    (transport,) = open_transports([f"{url}{'&' if '?' in url else '?'}headers=true" for url in urls])
    return transport


@pytest.fixture(scope="class")
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    try:
        made = request.cls.subject_of(tmp_path_factory)
        made.open = with_headers
        with made:
            made.node()
            yield made
    except ServerMissing as error:
        missing(str(error))


class TestNsqdWithHeaders(Publishing):
    @staticmethod
    def subject_of(folders: pytest.TempPathFactory) -> Subject:
        made = Nsqds([str(nsq_binary("nsqd")), SCAN], lambda: folders.mktemp("nsqd"), Server.stop)
        made.max_late += 5.0  # SCAN, of a new channel
        return made


class TestBeanstalkdWithHeaders(Publishing):
    @staticmethod
    def subject_of(folders: pytest.TempPathFactory) -> Subject:
        return Beanstalkds(folders)
