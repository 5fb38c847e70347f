"""What a broker's settings would do to a handler, in sentences for ``workers check``, and which topics are its own. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from framework.transports.contract import NodeInfo
from framework.transports.rocketmq.administration import Broker

OWN_TOPICS = frozenset({"TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "BenchmarkTest", "SCHEDULE_TOPIC_XXXX"})
_OWN = re.compile(r"%(RETRY|DLQ)%|(?i:rmq_sys_)|.*_REPLY_TOPIC$")


def is_own(topic: str) -> bool:
    """Whether RocketMQ keeps something of its own in ``topic``."""
    return bool(_OWN.match(topic))


def judged(info: NodeInfo, broker: Broker, missing: str) -> NodeInfo:
    """``info`` with what is to be said of ``broker``. ``missing``: a topic that no broker has."""
    obstacles = [words for words in (refusal(broker, info.node),) if words]
    if missing and not broker.allows("autoCreateTopicEnable"):
        obstacles.append(no_topic(missing, info.node))
    return replace(info, obstacles=tuple(obstacles), notes=tuple(_notes(broker, info.node)))


def refusal(broker: Broker, node: str) -> str:
    """Why no handler can be served there; empty: it can."""
    major = broker.version.partition(".")[0]
    if major.isdigit() and int(major) < 5:
        return f"{node} is RocketMQ {broker.version}, which has no POP: run 5.0 or newer"
    if not broker.allows("timerWheelEnable"):
        return f"{node} refuses every POP while it has timerWheelEnable=false: set it to true"
    return ""


def no_topic(topic: str, node: str) -> str:
    return f"{node} has no topic for {topic} and makes none (autoCreateTopicEnable=false): make it with mqadmin updateTopic"


def _notes(broker: Broker, node: str) -> Iterator[str]:
    if broker.settings and broker.settings.get("popConsumerKVServiceEnable") != "true":
        yield (
            f"{node} delivers what is requeued 2 to 5 s late: popConsumerKVServiceInit=true, popConsumerKVServiceEnable=true, "
            "enableRetryTopicV2=true and retrieveMessageFromPopRetryTopicV1=false make it half a second"
        )
