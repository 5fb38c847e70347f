"""A member by PULL that its broker rejects: it has no right to read. Here with a broker whose answers are made up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from framework.errors import AccessDenied
from framework.testing.conformance.receiver import StrictReceiver
from framework.transports import open_transports
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.canned import NAME, Canned
from tests.transports.rocketmq.kit import until


class Guarded(Canned):
    """Whether somebody may read is ``open``. It looks at that where one says in its heartbeat that it reads."""

    def __init__(self) -> None:
        super().__init__(0)
        self.open = False

    def _said(self, asked: Frame) -> tuple[int, Mapping[str, str], bytes] | None:
        if asked.code == Request.HEART_BEAT and not self.open and json.loads(asked.body)["consumerDataSet"]:
            return Answer.NO_PERMISSION, {}, b""
        return super()._said(asked)


@pytest.fixture
def server() -> Iterator[Guarded]:
    made = Guarded()
    yield made
    made.close()


def test_who_may_not_read_is_told_and_leaves_nothing_behind(server: Guarded) -> None:
    """It was connected, read nothing, and never said why."""
    transport: Any
    (transport,) = open_transports([f"rocketmq://{server.address}?mode=pull"])
    with transport._sessions.use(server.address) as session:
        with pytest.raises(AccessDenied):
            transport.connect(NAME, server.topic, "billing", StrictReceiver())
        assert (session._owners, session._of_group) == ({}, {})
        server.open = True
        receiver = StrictReceiver()
        connection = transport.connect(NAME, server.topic, "billing", receiver)
        assert connection.has_queues
        connection.close()
        until(lambda: receiver.closings)
    transport.close()
