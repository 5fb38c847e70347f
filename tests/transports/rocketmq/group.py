"""A membership without a broker: its session is answered at once, and its reader and its clock are the test's."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from framework.errors import BrokerUnreachable, FrameworkError
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.membership import Membership
from framework.transports.rocketmq.queues import Broken, Past, Pasts, Place, Reading
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.errors import error_of
from framework.transports.rocketmq.wire.frames import Frame
from tests.transports.rocketmq.paper import GROUP, NODE, TOPIC

ME = "me"
WHAT = Subscription(TOPIC, GROUP, pulls=True)


class Answered:
    """``question.Question``, answered already."""

    def __init__(self, found: Frame | FrameworkError) -> None:
        self._found = found

    def wait(self, timeout: float = 5.0, *, also: Collection[int] = ()) -> Frame:
        if isinstance(self._found, FrameworkError):
            raise self._found
        if self._found.code != Answer.SUCCESS and self._found.code not in also:
            raise error_of(self._found)
        return self._found


class Broker:
    """A session to a broker that answers at once."""

    client = ME

    def __init__(self) -> None:
        self.error: FrameworkError | None = None
        self.members: list[str] = [ME]
        self.holders: list[str] | None = [ME]
        """None: it does not tell."""
        self.nobody = False
        """Nobody is connected as one who may hold a lock."""
        self.locked: set[int] = set()
        """The queues that others have."""
        self.offsets: dict[int, str] = {}
        """Queue -> how far the group is; it has read none that is not there."""
        self.asked: list[tuple[int, dict[str, str], Any]] = []
        self.fails: set[int] = set()

    def heartbeat_of(self, group: str) -> bytes:
        return json.dumps({"group": group}).encode()

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"", timeout: float = 5.0) -> Frame:
        return self.question(code, fields, body).wait(timeout)

    def tell(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        self.asked.append((code, fields, json.loads(body) if body else None))

    def question(self, code: int, fields: dict[str, str], body: bytes = b"") -> Answered:
        self.tell(code, fields, body)
        return Answered(BrokerUnreachable("no") if code in self.fails else self._said(code, fields, body))

    def _said(self, code: int, fields: dict[str, str], body: bytes) -> Frame:
        match code:
            case Request.GET_CONSUMER_LIST_BY_GROUP:
                return Frame(0, body=json.dumps({"consumerIdList": self.members}).encode())
            case Request.GET_PRODUCER_CONNECTION_LIST if self.nobody:
                return Frame(Answer.SYSTEM_ERROR, remark="the producer group[g] not exist")
            case Request.GET_PRODUCER_CONNECTION_LIST if self.holders is None:
                return Frame(Answer.NO_PERMISSION, remark="no")
            case Request.GET_PRODUCER_CONNECTION_LIST:
                holders = [{"clientId": one} for one in self.holders or ()]
                return Frame(0, body=json.dumps({"connectionSet": holders}).encode())
            case Request.LOCK_BATCH_MQ:
                free = [one for one in json.loads(body)["mqSet"] if one["queueId"] not in self.locked]
                return Frame(0, body=json.dumps({"lockOKMQSet": free}).encode())
            case Request.QUERY_CONSUMER_OFFSET if (found := self.offsets.get(int(fields["queueId"]))) is not None:
                return Frame(0, fields={"offset": found} if found else {})
            case Request.QUERY_CONSUMER_OFFSET:
                return Frame(Answer.QUERY_NOT_FOUND, remark="not found")
            case Request.PULL_MESSAGE:
                return Frame(Answer.PULL_NOT_FOUND)
        return Frame(0)

    def said(self, code: int) -> list[tuple[dict[str, str], Any]]:
        """Fields and body of the requests of this kind so far; they are forgotten."""
        found = [(fields, body) for one, fields, body in self.asked if one == code]
        self.asked = [each for each in self.asked if each[0] != code]
        return found


class Shelf:
    """``membership.Reader``."""

    def __init__(self) -> None:
        self.readings: dict[Place, Reading] = {}
        self.wants_queues = True
        self.balances = 0
        self.lets_go = True
        self.losses: list[Exception | None] = []

    def balanced(self) -> None:
        self.balances += 1

    def lost(self, error: Exception | None) -> None:
        self.losses.append(error)

    def let_go(self, reading: Reading) -> bool:
        return self.lets_go


class Group:
    """A membership, what it is a member of, and a clock. ``look``: the one that is due."""

    def __init__(self, clock: list[float], *, queues: int = 4, retry: int = 1, broken: Broken | None = None) -> None:
        self.clock, self.broker, self.shelf = clock, Broker(), Shelf()
        self.places = {TOPIC: [Place(TOPIC, NODE, one) for one in range(queues)]}
        self.places[WHAT.retry_topic] = [Place(WHAT.retry_topic, NODE, one) for one in range(retry)]
        self.routes: list[str] = []
        """The topics that were asked for."""
        self.unknown: set[str] = set()
        self.pasts: Pasts = {}
        if broken is not None:
            self.pasts[GROUP] = Past()
            self.pasts[GROUP].broke[NODE] = broken
        session: Any = self.broker
        self.member = Membership(session, NODE, WHAT, self._places, self.shelf, pasts=self.pasts)
        self.member._greenlet.kill(block=False)
        self.look: Callable[[], float] = self.member._look

    def _places(self, topic: str) -> Collection[Place]:
        self.routes.append(topic)
        if topic in self.unknown:
            raise BrokerUnreachable("no route")
        return self.places[topic]

    @property
    def numbers(self) -> list[int]:
        """The queues of the topic that it has."""
        return sorted(place.number for place in self.shelf.readings if place.topic == TOPIC)
