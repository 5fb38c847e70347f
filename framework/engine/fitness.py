"""Asks a broker's nodes what they can do for each handler, and judges the handlers by it. Nothing is subscribed or changed.

What is refused, and in which words, is said by ``refusals``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import gevent

from framework.engine.refusals import unfit
from framework.errors import FrameworkError
from framework.handler import HandlerSpec
from framework.middleware.dead_letter import topic_name
from framework.observe import hublog
from framework.source import locate
from framework.transports.contract import NodeInfo, Transport

log = hublog.get(__name__)

AT_ONCE = 32
"""Handlers asked for at the same time: a greenlet for each of thousands would take longer than the questions."""

Described = Mapping[str, Sequence[NodeInfo]]
"""A handler's name -> what the nodes say that they can do for it."""


def described(handlers: Sequence[HandlerSpec], transport: Transport, seconds: float) -> Described:
    """Many asked at once. What has not been answered in ``seconds`` holds up nobody: it is left out."""
    answers: dict[str, Sequence[NodeInfo]] = {spec.name: [] for spec in handlers}
    waiting = iter(handlers)

    def ask() -> None:
        for spec in waiting:
            answers[spec.name] = _described(spec, transport)

    asking = [gevent.spawn(ask) for _ in range(min(AT_ONCE, len(handlers)))]
    gevent.joinall(asking, timeout=seconds)
    gevent.killall(asking, block=False)
    return answers


def misfits(handlers: Sequence[HandlerSpec], transport: Transport, found: Described) -> list[str]:
    """A sentence for everything that a node cannot do for the handlers whose topics it has.

    Of a topic that no node has yet, any may be given it: they are misfits only when none fits."""
    return [words for spec in handlers for words in _misfits(spec, transport, found[spec.name])]


def notes(handlers: Sequence[HandlerSpec], found: Described) -> list[str]:
    """A sentence for everything else that the nodes have to say of the topics and channels of the handlers."""
    said = (f"{locate(spec.function)}: {words}" for spec in handlers for node in found[spec.name] for words in node.notes)
    return list(dict.fromkeys(said))


def _described(spec: HandlerSpec, transport: Transport) -> list[NodeInfo]:
    try:
        found = transport.describe(spec.topic, spec.channel)
        return found if transport.capabilities.auto_create else _with_dead_letters(spec, transport, found)
    except FrameworkError as error:  # the supervisor waits for it, or ends with it
        log.debug("handler %s: its broker does not say what it can do: %s", spec.name, error)
        return []


def _with_dead_letters(spec: HandlerSpec, transport: Transport, found: Sequence[NodeInfo]) -> list[NodeInfo]:
    """Where no topic comes to be by itself, and no node makes that of the dead letters, a handler is not begun."""
    lacking = {one.node: one.obstacles for one in transport.describe(topic_name(spec.topic, spec.channel), spec.channel)}
    if not all(lacking.values()):
        return list(found)
    return [replace(one, obstacles=tuple(dict.fromkeys((*one.obstacles, *lacking.get(one.node, ()))))) for one in found]


def _misfits(spec: HandlerSpec, transport: Transport, nodes: Sequence[NodeInfo]) -> list[str]:
    found = {node.node: unfit(spec, node, transport.capabilities) for node in nodes}
    if not any(found.values()):
        return []
    try:
        having = transport.discover(spec.topic, spec.channel)
    except FrameworkError:
        return []
    if not having and not all(found.values()):
        return []
    return [words for node, some in found.items() if not having or node in having for words in some]
