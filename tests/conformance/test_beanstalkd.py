"""The conformance suite over a real beanstalkd that syncs each write, which goes down by SIGKILL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from framework.testing import servers
from framework.testing.conformance import Node, Subject, Suite
from framework.transports.beanstalkd import connection, reserved_job
from tests.conformance.endings import Endings
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
    largest = 1 << 20
    ends_unheard_leases = False  # its timer of a connection can be lost, until that says something (beanstalkd#262)
    silence = 3.0
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
        self.patches = pytest.MonkeyPatch()

    def make(self, *, brief: bool) -> Node:
        server = servers.real_beanstalkd(self._folders.mktemp("beanstalkd"), "-z", str(self.largest))
        ttr = f"&ttr={self.brief:g}s" if brief else ""
        return BeanstalkdNode(server, f"?max_job_size={self.largest}{ttr}")

    def watchful(self, url: str) -> str:
        """Silence is noticed after fifteen seconds, and no option says otherwise."""
        self.patches.setattr(reserved_job, "GRACE", 2.0)
        self.patches.setattr(connection, "_PULSE", 0.5)
        return url


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beanstalkds]:
    try:
        servers.real_beanstalkd(tmp_path_factory.mktemp("there"))
    except servers.ServerMissing as error:
        missing(str(error))
    with Beanstalkds(tmp_path_factory) as made:
        yield made


@pytest.fixture(autouse=True)
def as_patient_as_ever(subject: Beanstalkds) -> Iterator[None]:
    """After a case of silence."""
    yield
    subject.patches.undo()


class TestBeanstalkd(Suite, Endings):
    """Every chapter."""
