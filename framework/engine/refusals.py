"""Says in sentences what a broker cannot do for the handlers, before anything is started. Nothing is connected or logged here.

``workers check`` prints all sentences, ``workers run`` ends with the first, and a connection is refused with the same words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from framework.errors import Backoff, Retry, WrongUse
from framework.handler import HandlerSpec
from framework.middleware.dead_letter import lasting, topic_name
from framework.middleware.later import LEAST_HOP, lasts
from framework.source import locate
from framework.transports.contract import Capabilities, Limits, NodeInfo


class Broker(Protocol):
    """What is asked of a ``transports.contract.Transport`` here: nothing that connects."""

    @property
    def capabilities(self) -> Capabilities: ...

    def accept(self, topic: str, channels: Collection[str]) -> None: ...


def refusals(handlers: Sequence[HandlerSpec], broker: Broker, nodes: Iterable[NodeInfo] = ()) -> list[str]:
    """A sentence for everything that ``broker``, or one of its ``nodes``, cannot do for ``handlers``; empty: they fit.

    Names and channels come first: they can be judged before a node has been asked for its limits.
    """
    found = [*_clashes(handlers), *_names(handlers, broker), *_lacking(handlers, broker.capabilities)]
    found += [words for node in nodes for spec in handlers for words in unfit(spec, node, broker.capabilities)]
    return found


def unfit(spec: HandlerSpec, node: NodeInfo, capabilities: Capabilities) -> list[str]:
    """A sentence for everything that ``node``, of a broker with ``capabilities``, cannot do for ``spec``; empty: it fits."""
    can = node.capabilities or capabilities
    words = lease_refusal(spec, node.node, node.limits, can)
    obstacles = [f"{locate(spec.function)}: {obstacle}" for obstacle in node.obstacles]
    return [*([words] if words else []), *(_lacking([spec], can) if can != capabilities else []), *obstacles]


def _lacking(handlers: Sequence[HandlerSpec], capabilities: Capabilities) -> list[str]:
    if not capabilities.acknowledges:  # which leaves nothing to count or to delay
        return _unacknowledged(handlers)
    return [*_attempts(handlers, capabilities), *_delays(handlers, capabilities)]


def lease_refusal(spec: HandlerSpec, node: str, limits: Limits, capabilities: Capabilities) -> str:
    """Why ``node`` cannot keep a message for as long as a call of ``spec`` may run; empty: it can."""
    longest = limits.max_lease if capabilities.touch else limits.lease
    if spec.timeout <= longest:
        return ""
    otherwise = f", or {capabilities.longer_lease}" if capabilities.longer_lease else ""
    return (
        f"{locate(spec.function)}: timeout={spec.timeout:g} is longer than {node} keeps a message in flight, "
        f"{longest:g} s: lower timeout{otherwise}"
    )


def cautions(handlers: Sequence[HandlerSpec], broker: Broker) -> list[str]:
    """A sentence for what ``handlers`` expect by default and ``broker`` does not do, which is no reason not to start."""
    if handlers and not broker.capabilities.acknowledges:
        if all(spec.at_most_once for spec in handlers):
            return []
        return ["this broker waits for no acknowledgement, so what fails, or is in flight when a worker ends, is lost"]
    return [*_countless(handlers, broker.capabilities), *_delayless(handlers, broker.capabilities)]


def _delayless(handlers: Sequence[HandlerSpec], capabilities: Capabilities) -> list[str]:
    if not handlers or capabilities.max_defer >= LEAST_HOP:  # an envelope waits, whatever a requeue does
        return []
    otherwise = f": {capabilities.longer_delay}" if capabilities.longer_delay else ""
    if capabilities.max_requeue >= LEAST_HOP:
        return [f"this broker delays no publish, so each Retry(count=False) counts as an attempt{otherwise}"]
    return [f"this broker keeps no delays, so what fails or is retried is delivered again at once{otherwise}"]


def _countless(handlers: Sequence[HandlerSpec], capabilities: Capabilities) -> list[str]:
    if capabilities.attempts:
        return []
    return [
        f"{locate(spec.function)}: this broker does not count deliveries, so what always fails is delivered for ever: "
        "raise Reject for messages that no retry can help (max_attempts=0 says that this is known)"
        for spec in handlers
        if spec.max_attempts and "max_attempts" not in spec.given
    ]


def _clashes(handlers: Sequence[HandlerSpec]) -> list[str]:
    """Two handlers whose names make the same topic for what is dead or waits: orders + eu.billing, and orders.eu + billing."""
    found, owners = [], dict[str, HandlerSpec]()
    for spec in handlers:
        other = owners.setdefault(topic_name(spec.topic, spec.channel), spec)
        if lasting(other.topic, other.channel) != lasting(spec.topic, spec.channel):
            found.append(
                f"{locate(spec.function)}: {spec.name} and {other.name} make the same topic for their dead letters, "
                f"{topic_name(spec.topic, spec.channel)}: give one of them another topic or channel"
            )
    return found


def _delays(handlers: Sequence[HandlerSpec], capabilities: Capabilities) -> list[str]:
    """A delay that a policy asks for, and that nothing keeps: hops need a broker with delays, and topics that last."""
    otherwise = f", or {capabilities.longer_delay}" if capabilities.longer_delay else ""
    found = []
    for spec in handlers:
        hops = capabilities.max_defer >= LEAST_HOP and lasts(spec)
        for action in (action for _, action in spec.policy if isinstance(action, Retry | Backoff)):
            if not hops and (action.delay or 0) > capabilities.max_requeue:
                asked = f"policy asks for {type(action).__name__}(delay={action.delay:g})"
                kept = f"a message waits here for {capabilities.max_requeue:g} s at most"
                found.append(f"{locate(spec.function)}: {asked}, and {kept}: lower the delay{otherwise}")
    return found


def _names(handlers: Sequence[HandlerSpec], broker: Broker) -> list[str]:
    """The topics with the channels of all their handlers at once, then the topics of their dead letters."""
    found = []
    of_topics: dict[str, list[HandlerSpec]] = {}
    for spec in handlers:
        of_topics.setdefault(spec.topic, []).append(spec)
    for topic, mine in of_topics.items():
        found += _asked(broker, mine[0], topic, [spec.channel for spec in mine])
    for spec in handlers:
        found += _asked(broker, spec, topic_name(spec.topic, spec.channel), [], "its dead letters: ")
    return found


def _asked(broker: Broker, spec: HandlerSpec, topic: str, channels: Collection[str], what: str = "") -> list[str]:
    try:
        broker.accept(topic, channels)
    except WrongUse as error:
        return [f"{locate(spec.function)}: {what}{error}"]
    return []


def _unacknowledged(handlers: Sequence[HandlerSpec]) -> list[str]:
    """What was asked for and needs a second delivery, or a letter that is kept; unless it was said that messages may be lost."""
    found = []
    for spec in (spec for spec in handlers if not spec.at_most_once):
        asked = [f"max_attempts={spec.max_attempts}"] if spec.max_attempts and "max_attempts" in spec.given else []
        asked += ["policy"] if spec.policy else []
        asked += ['on_timeout="reject"'] if spec.on_timeout == "reject" else []
        found += [
            f"{locate(spec.function)}: {what} cannot be kept, this broker waits for no acknowledgement, and keeps neither what "
            f"fails nor dead letters: drop {what.partition('=')[0]}, use a broker that does, or say at_most_once=True"
            for what in asked
        ]
    return found


def _attempts(handlers: Sequence[HandlerSpec], capabilities: Capabilities) -> list[str]:
    """A limit that was asked for and would never be reached. The default one is only a caution: see ``cautions``."""
    if capabilities.attempts:
        return []
    return [
        f"{locate(spec.function)}: max_attempts={spec.max_attempts} cannot be kept, this broker does not count deliveries: "
        "drop max_attempts, and raise Reject for messages that no retry can help"
        for spec in handlers
        if spec.max_attempts and "max_attempts" in spec.given
    ]
