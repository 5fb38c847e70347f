"""What an operator wants of handlers while they run: pauses, drains, numbers. Asked for from anywhere, applied on the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framework.engine.consumer import Consumer
from framework.errors import BadHandler, WrongUse
from framework.handler import OPTIONS, HandlerSpec
from framework.observe import hublog

log = hublog.get(__name__)


class Controls:
    """Those of ``handlers``. Raises BadHandler for a batch that ``max_in_flight`` can never fill.

    Each method but ``apply`` may be called from anywhere, also from a signal handler, and raises WrongUse for a handler that is
    not here.
    """

    def __init__(self, handlers: Sequence[HandlerSpec]) -> None:
        for spec in handlers:
            _check(spec)
        self._specs = {spec.name: spec for spec in handlers}
        self._paused: set[str] = set()
        self._drained: set[str] = set()
        self.max_in_flight = {spec.name: spec.max_in_flight for spec in handlers}
        self.concurrency = {spec.name: spec.concurrency for spec in handlers}

    def pause(self, name: str) -> None:
        self._paused.add(self._known(name).name)

    def drain(self, name: str) -> None:
        """A pause, with which what has not been started is given back."""
        self._drained.add(self._known(name).name)
        self._paused.add(name)

    def resume(self, name: str) -> None:
        self._paused.discard(self._known(name).name)
        self._drained.discard(name)

    def set_max_in_flight(self, name: str, number: int) -> None:
        """Raises BadHandler for a number that it cannot have."""
        spec = self._known(name)
        _refuse(spec, "max_in_flight", number, "to have none, pause it")
        _check(replace(spec, max_in_flight=number))
        self.max_in_flight[name] = number

    def set_concurrency(self, name: str, number: int) -> None:
        """Raises BadHandler for a number that it cannot have."""
        _refuse(self._known(name), "concurrency", number, "to have none, pause it")
        if number > self.max_in_flight[name]:
            raise BadHandler(
                f"handler {name}: concurrency={number} can never be reached with max_in_flight={self.max_in_flight[name]}: "
                "raise max_in_flight first"
            )
        self.concurrency[name] = number

    def apply(self, consumer: Consumer) -> None:
        """On the hub: have ``consumer`` be as it shall be."""
        name, flow = consumer.spec.name, consumer.flow
        paused, drained = name in self._paused, name in self._drained
        if drained and not flow.drained:
            log.info("handler %s: drained; what has not been started is given back", name)
        elif flow.paused != paused:
            log.info("handler %s: %s", name, "paused; what has come is handled" if paused else "goes on")
        if (flow.paused, flow.drained) != (paused, drained):
            flow.pause(paused, drained=drained)
        if flow.max_in_flight != self.max_in_flight[name]:
            log.info("handler %s: max_in_flight is now %d", name, self.max_in_flight[name])
            flow.resize(self.max_in_flight[name])
        if consumer.concurrency != self.concurrency[name]:
            log.info("handler %s: concurrency is now %d", name, self.concurrency[name])
            consumer.resize(self.concurrency[name])

    def _known(self, name: str) -> HandlerSpec:
        if name not in self._specs:
            raise WrongUse(f"there is no handler {name!r} here: name one of {', '.join(sorted(self._specs))}")
        return self._specs[name]


def _refuse(spec: HandlerSpec, option: str, number: object, instead: str) -> None:
    rule = OPTIONS[option]
    if not rule.allows(number):
        raise BadHandler(f"handler {spec.name}: {option}={number!r} is not {rule}; {instead}")


def _check(spec: HandlerSpec) -> None:
    if spec.batch > spec.max_in_flight:
        raise BadHandler(
            f"handler {spec.name}: batch={spec.batch} can never fill with max_in_flight={spec.max_in_flight}; "
            f"set max_in_flight to {spec.batch} or more"
        )
