"""The conformance suite over a real beanstalkd that syncs each write, which goes down by SIGKILL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framework.testing import servers
from framework.testing.conformance import Node, Subject, Suite
from tests.conftest import missing

pytestmark = pytest.mark.real


class BeanstalkdNode(Node):
    def __init__(self, server: servers.Server, options: str) -> None:
        self._server = server
        self.address = server.address
        self.url = f"beanstalkd://{server.address}{options}"

    def up(self) -> None:
        self._server.start()

    def down(self) -> None:
        self._server.kill()


class Beanstalkds(Subject):
    brief = 2.0  # whole seconds, and a job is not given out in the last of them
    largest = 65_535
    ends_unheard_leases = False  # its timer of a connection can be lost, until that says something (beanstalkd#262)
    silence = 15.0
    wrong_urls = (
        "beanstalkd://me:secret@host",
        "beanstalkd://host/tube",
        "beanstalkd://host?nope=1",
        "beanstalkd://host?ttr=0.5s",
    )
    invalid_names = ("-first", "orders#ephemeral")

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._folders = tmp_path_factory

    def make(self, *, brief: bool) -> Node:
        server = servers.real_beanstalkd(self._folders.mktemp("beanstalkd"))
        return BeanstalkdNode(server, f"?ttr={self.brief:g}s" if brief else "")


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    try:
        servers.real_beanstalkd(tmp_path_factory.mktemp("there"))
    except servers.ServerMissing as error:
        missing(str(error))
    with Beanstalkds(tmp_path_factory) as made:
        yield made


class TestBeanstalkd(Suite):
    """Every chapter."""
