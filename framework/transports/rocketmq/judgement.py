"""What a broker's settings would do to a handler, in sentences for ``workers check``. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from framework.transports.contract import NodeInfo
from framework.transports.rocketmq.administration import Broker


def judged(info: NodeInfo, broker: Broker, missing: tuple[str, str] | None, *, pulls: bool) -> NodeInfo:
    """``info`` with what is to be said of ``broker``. ``pulls``: it is read by PULL; ``missing``: a topic that no
    broker has, and its name there."""
    obstacles = [words for words in (refusal(broker, info.node, pulls=pulls),) if words]
    if missing and not broker.allows("autoCreateTopicEnable"):
        obstacles.append(no_topic(*missing, info.node))
    return replace(info, obstacles=tuple(obstacles), notes=tuple(_notes(broker, info.node, pulls=pulls)))


def refusal(broker: Broker, node: str, *, pulls: bool) -> str:
    """Why no handler can be served there; empty: it can."""
    if pulls:
        return ""
    if not broker.pops:
        return f"{node} is RocketMQ {broker.version}, which has no POP: leave mode=pop out of the broker URL"
    if not broker.allows("timerWheelEnable"):
        return f"{node} refuses every POP while it has timerWheelEnable=false: set it to true, or read it by mode=pull"
    return ""


def no_topic(topic: str, name: str, node: str) -> str:
    """``name``: RocketMQ's, of ``topic``."""
    return f"{node} has no topic for {topic} and makes none (autoCreateTopicEnable=false): {_make(name)}"


def may_not_make(topic: str, name: str, node: str, error: Exception) -> str:
    """As ``no_topic``. ``error``: how the broker says so."""
    return f"{node} has no topic for {topic}, and lets this user make none ({error}): {_make(name)}"


def _make(name: str) -> str:
    return f"make it with mqadmin updateTopic -t {name}"


def unreadable(topic: str, node: str, perm: int) -> str:
    return f"{node} lets nobody read topic {topic}, whose perm is {perm} there: what it has waits until mqadmin updateTopicPerm"


def drops(group: str, node: str) -> str:
    fix = f"mqadmin updateSubGroup -g '{group}' -q 1"
    return f"{node} drops what is requeued of group {group} (retryQueueNums=0), which would be lost: set it to 1 ({fix})"


def begins_again(topic: str, channel: str, *, pulls: bool) -> str:
    before, now = ("POP", "PULL") if pulls else ("PULL", "POP")
    return (
        f"channel {channel!r} of {topic!r} was read by {before}, and by {now} it begins again with the first message still "
        f"there: mode={before.lower()} in the broker URL goes on where it was"
    )


def _notes(broker: Broker, node: str, *, pulls: bool) -> Iterator[str]:
    if pulls:
        yield (
            f"{node} is read by PULL: a message has no lease, the kill of a worker costs it no attempt, and a queue is one "
            "worker's at a time"
        )
    elif broker.settings and broker.settings.get("popConsumerKVServiceEnable") != "true":
        yield (
            f"{node} delivers what is requeued 2 to 5 s late: popConsumerKVServiceInit=true, popConsumerKVServiceEnable=true, "
            "enableRetryTopicV2=true and retrieveMessageFromPopRetryTopicV1=false make it half a second"
        )
