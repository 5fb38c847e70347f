"""The answers that are errors, each a class of its own that keeps the server's words. No I/O here."""

from __future__ import annotations

import re

from framework.errors import AccessDenied, BrokerError, CommandRefused, RequestRefused, TryLater
from framework.transports.rocketmq.wire.codes import Answer, name_of
from framework.transports.rocketmq.wire.frames import Frame

MOST_WORDS = 600
"""Characters of a server's words that are kept."""
_JAVA = re.compile(r"(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)\b")


class RocketError(BrokerError):
    """An answer that is an error. ``number``: its code."""

    number: int = -1

    def __init__(self, words: str = "", *, number: int | None = None, fix: str = "") -> None:
        self.number = self.number if number is None else number
        super().__init__(name_of(self.number), words, fatal=False, fix=fix)


class SystemFault(RocketError):
    """1: the server could not do it, for a reason that its words tell."""

    number = Answer.SYSTEM_ERROR


class JavaException(SystemFault, CommandRefused):
    """1, with the name of an exception: the request had a part missing or wrong. The same request gets the same answer."""


class Busy(RocketError, TryLater):
    """2: the server has too much to do."""

    number = Answer.SYSTEM_BUSY


class NotSupported(RocketError, CommandRefused):
    """3: the server does not know such a request; one before 5.0 does not know POP."""

    number = Answer.REQUEST_CODE_NOT_SUPPORTED


class TransactionFailed(RocketError):
    """4."""

    number = Answer.TRANSACTION_FAILED


class FlushDiskTimeout(RocketError):
    """10: it is stored, and was not on disk in time."""

    number = Answer.FLUSH_DISK_TIMEOUT


class SlaveNotAvailable(RocketError):
    """11: it is stored, on no slave."""

    number = Answer.SLAVE_NOT_AVAILABLE


class FlushSlaveTimeout(RocketError):
    """12: it is stored, and was on no slave in time."""

    number = Answer.FLUSH_SLAVE_TIMEOUT


class Illegal(RocketError, RequestRefused):
    """13: a message too large, or a delay or a queue that there is not."""

    number = Answer.MESSAGE_ILLEGAL


class NotAvailable(RocketError, TryLater):
    """14: the server takes nothing now: it stops, or its disk is full."""

    number = Answer.SERVICE_NOT_AVAILABLE


class VersionNotSupported(RocketError, CommandRefused):
    """15."""

    number = Answer.VERSION_NOT_SUPPORTED


class NoPermission(RocketError, AccessDenied):
    """16: who we are may not do it, or nobody may."""

    number = Answer.NO_PERMISSION


class TopicMissing(RocketError, RequestRefused):
    """17: there is no such topic, or no route to it."""

    number = Answer.TOPIC_NOT_EXIST


class TopicThere(RocketError, RequestRefused):
    """18."""

    number = Answer.TOPIC_EXIST_ALREADY


class PullNotFound(RocketError):
    """19: there is nothing to pull yet."""

    number = Answer.PULL_NOT_FOUND


class PullAgain(RocketError):
    """20: nothing of what was read matched the subscription: ask from the next offset."""

    number = Answer.PULL_RETRY_IMMEDIATELY


class OffsetMoved(RocketError):
    """21: the offset is not in the queue; the answer has one that is."""

    number = Answer.PULL_OFFSET_MOVED


class QueryNotFound(RocketError):
    """22: there is nothing of what was asked for."""

    number = Answer.QUERY_NOT_FOUND


class SubscriptionUnreadable(RocketError, RequestRefused):
    """23."""

    number = Answer.SUBSCRIPTION_PARSE_FAILED


class SubscriptionMissing(RocketError, RequestRefused):
    """24: no heartbeat told the server of it."""

    number = Answer.SUBSCRIPTION_NOT_EXIST


class SubscriptionStale(RocketError, RequestRefused):
    """25: a heartbeat told of an older one."""

    number = Answer.SUBSCRIPTION_NOT_LATEST


class GroupMissing(RocketError, RequestRefused):
    """26: there is no such consumer group."""

    number = Answer.SUBSCRIPTION_GROUP_NOT_EXIST


class FilterMissing(RocketError, RequestRefused):
    """27."""

    number = Answer.FILTER_DATA_NOT_EXIST


class FilterStale(RocketError, RequestRefused):
    """28."""

    number = Answer.FILTER_DATA_NOT_LATEST


class BadParameter(RocketError, RequestRefused):
    """29: a name, a queue or a number that the server does not take."""

    number = Answer.INVALID_PARAMETER


class NotInUnit(RocketError, RequestRefused):
    """205."""

    number = Answer.NOT_IN_CURRENT_UNIT


class ConsumerOffline(RocketError):
    """206."""

    number = Answer.CONSUMER_NOT_ONLINE


class ConsumeTimeout(RocketError):
    """207."""

    number = Answer.CONSUME_MSG_TIMEOUT


class NoMessage(RocketError):
    """208: there is no message where the handle says."""

    number = Answer.NO_MESSAGE


class PollingFull(RocketError, TryLater):
    """209: too many POPs of the group wait already."""

    number = Answer.POLLING_FULL


class PollingTimeout(RocketError):
    """210: nothing came while a POP waited."""

    number = Answer.POLLING_TIMEOUT


class BrokerMissing(RocketError, TryLater):
    """211."""

    number = Answer.BROKER_NOT_EXIST


class DispatchBehind(RocketError, TryLater):
    """212."""

    number = Answer.BROKER_DISPATCH_NOT_COMPLETE


class Broadcasting(RocketError, RequestRefused):
    """213: the group is one whose members each get everything."""

    number = Answer.BROADCAST_CONSUMPTION


class FlowControl(RocketError, TryLater):
    """215: too many requests."""

    number = Answer.FLOW_CONTROL


class NotLeader(RocketError, TryLater):
    """501."""

    number = Answer.NOT_LEADER_FOR_QUEUE


class IllegalOperation(RocketError, RequestRefused):
    """604."""

    number = Answer.ILLEGAL_OPERATION


class GoAway(RocketError, TryLater):
    """1500: the server is about to stop; what waits there is still answered, and nothing new is."""

    number = Answer.GO_AWAY


def _all(base: type[RocketError]) -> list[type[RocketError]]:
    return [found for one in base.__subclasses__() for found in (one, *_all(one))]


CLASSES = {one.number: one for one in reversed(_all(RocketError))}
"""Code -> its class."""


def _in_one_line(remark: str) -> str:
    """Some have the lines of a Java stack, and one may be as long as a frame: its beginning tells what it is."""
    words = " ".join(remark[:MOST_WORDS].split())
    return f"{words} ..." if len(remark) > MOST_WORDS else words


def error_of(answer: Frame, fix: str = "") -> RocketError:
    """The error that ``answer`` is. ``fix``: what a person can do about it."""
    words = _in_one_line(answer.remark)
    if answer.code == Answer.SYSTEM_ERROR and _JAVA.search(words):
        return JavaException(words, fix=fix)
    return CLASSES.get(answer.code, RocketError)(words, number=answer.code, fix=fix)
