"""@handler and HandlerSpec: a function bound to a topic and a channel, every option checked at import."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import FunctionType, SimpleNamespace
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_type_hints

from framework import hooks, names, payload
from framework.errors import BadHandler, BadName, shown
from framework.hooks import Middleware
from framework.message import Message
from framework.rules import Action, Chain, Choice, Flag, Option, Policy, Rules
from framework.source import locate


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """What the engine needs to know of one handler. Made by ``@handler``, which checks every field."""

    topic: str
    channel: str
    function: Callable[[Any], Any]
    decode: Callable[[Message], Any] | None
    """Message -> the function's argument, or one item of it; None hands over the Message itself. Raises UndecodablePayload."""
    concurrency: int
    """How many calls run at once in one process."""
    max_in_flight: int
    """The most messages received and not settled, over all nodes."""
    timeout: float
    """Seconds a call may run; its lease is kept that long and no longer."""
    max_attempts: int
    """Deliveries before the message goes to the dead letter topic; 0: no limit."""
    batch: int
    """The most messages in one call; 0: the handler takes one message at a time."""
    linger: float
    """Seconds to wait for a batch to fill."""
    given: frozenset[str] = frozenset()
    """The options that were written: what a broker cannot honour is refused where it was asked for, not where it is a default."""
    slots: str = "greenlet"
    """Where calls run: "greenlet", "thread" or "process"."""
    on_timeout: str = "retry"
    """What becomes of a message whose call took longer than ``timeout``: "retry" or "reject"."""
    as_list: bool = False
    """A batch handler gets a list, not a Batch."""
    policy: Policy = ()
    """Exception class -> what it means when the function raises one: Retry, Reject or Backoff."""
    middleware: tuple[Middleware, ...] = ()
    """What is around its calls, outermost first."""
    at_most_once: bool = False
    """Its messages may be lost: a broker that waits for no acknowledgement is good enough, whatever else was asked for."""
    payload_type: Any = Message
    """What the annotation says of a body, or of the body of one item of a batch."""

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.channel}"


class Options(TypedDict, total=False):
    """The options of ``@handler``; HandlerSpec says what each means, ``OPTIONS`` what it may be."""

    concurrency: int
    max_in_flight: int
    timeout: float
    max_attempts: int
    batch: int
    linger: float
    slots: Literal["greenlet", "thread", "process"]
    on_timeout: Literal["retry", "reject"]
    policy: Mapping[type[Exception], Action]
    middleware: Sequence[Middleware]
    at_most_once: bool


#: The options of ``@handler`` and their defaults. ``timeout`` is NSQ's default lease. ``max_in_flight`` is an upper
#: bound: the runtime prefetches only what handlers get through, so it may be large. NSQ counts attempts in 16 bits.
OPTIONS: Mapping[str, Option | Choice | Rules | Chain | Flag] = {
    "concurrency": Option(default=10, least=1, most=100_000, unit="calls"),
    "max_in_flight": Option(default=1000, least=1, most=1_000_000, unit="messages"),
    "timeout": Option(default=60.0, least=0, most=604_800, unit="seconds", whole=False, above=True),
    "max_attempts": Option(default=10, least=0, most=65_535, unit="deliveries"),
    "batch": Option(default=0, least=1, most=100_000, unit="messages"),
    "linger": Option(default=0.5, least=0, most=3_600, unit="seconds", whole=False),
    "slots": Choice(("greenlet", "thread", "process")),
    "on_timeout": Choice(("retry", "reject")),
    "policy": Rules(),
    "middleware": Chain(),
    "at_most_once": Flag(),
}

#: What other frameworks call them, where spelling alone would not lead to ours.
_ELSEWHERE = {
    "prefetch": "max_in_flight", "prefetch_count": "max_in_flight", "rdy": "max_in_flight",
    "retries": "max_attempts", "max_retries": "max_attempts", "max_tries": "max_attempts",
    "time_limit": "timeout", "msg_timeout": "timeout", "workers": "concurrency", "threads": "concurrency",
    "autoretry_for": "policy", "reject_on": "policy", "retry_on": "policy", "throws": "policy",
    "pool": "slots", "worker_class": "slots", "executor": "slots",
}  # fmt: skip

F = TypeVar("F", bound=Callable[[Any], object])


def handler(topic: str, channel: str, **options: Unpack[Options]) -> Callable[[F], F]:
    """Have ``workers run`` call the decorated function for every message of ``topic`` on ``channel``.

    The annotation of its one argument says what it gets: ``Message`` (also without an annotation), ``bytes``,
    ``str`` (UTF-8), ``dict``, a dataclass or a ``msgspec.Struct`` (JSON), or with ``batch=`` a ``Batch`` (of messages),
    ``Batch[Order]`` or ``list[Order]`` (of what each body decodes to; one that does not is dead-lettered alone). Returning
    finishes the message; raising gives it back, to be delivered again later. The function itself stays as it is.

    Options: ``concurrency`` (10 calls at once in one process), ``max_in_flight`` (1000 messages received and not
    settled), ``timeout`` (60 seconds for a call), ``max_attempts`` (10 deliveries, then the dead letter topic;
    0: no limit), ``batch`` (the most messages in one call), ``linger`` (0.5 seconds to wait for a batch to fill),
    ``slots`` (where calls run: "greenlet"; "thread" for what blocks where gevent cannot see it; "process" for what
    computes, on as many CPUs as there are), ``on_timeout``
    ("retry"; "reject": to the dead letter topic), ``policy`` (what exceptions mean, the nearest class of the one raised:
    ``{ValueError: Reject, ConnectionError: Backoff, RateLimited: Retry(delay=60)}``), ``middleware`` (what is around its calls,
    outermost first, inside of what ``use_middleware`` declares for its module), ``at_most_once`` (False; True: take messages of a
    broker that delivers nothing twice as well, where what fails is lost: retries, attempts and dead letters are kept elsewhere).

    Raises BadName or BadHandler, in one sentence that names the function and the fix.
    """
    local = sys._getframe(1).f_locals  # so that a type declared inside a function can be named by its string

    def register(function: F) -> F:
        _registry.add(make_spec(function, topic, channel, options, local))
        return function

    return register


def longest_timeout(topic: str) -> float | None:
    """The longest timeout in seconds of the registered handlers of ``topic``; None where there is none."""
    return max((spec.timeout for spec in registered() if spec.topic == topic), default=None)


def registered() -> list[HandlerSpec]:
    """Every handler declared so far in this process, in the order of declaration."""
    return [entry.complete for entry in _registry.entries.values()]


def declared_in(spec: HandlerSpec) -> str:
    """The name of the module that declared ``spec`` when it was imported; else of the one that its function is from."""
    entry = _registry.entries.get(spec.name)
    return entry.declared_in if entry is not None and entry.spec.function is spec.function else spec.function.__module__


def make_spec(
    function: Callable[[Any], object],
    topic: str,
    channel: str,
    options: Mapping[str, Any] | None = None,
    local: Mapping[str, Any] | None = None,
) -> HandlerSpec:
    """The spec of ``function``, checked as ``@handler`` checks it but not registered. Raises BadName, BadHandler."""
    where = locate(function)
    try:
        names.check("topic", topic)
        names.check("channel", channel)
    except BadName as error:
        raise BadName(f"{where}: {error}") from None
    try:
        values = _checked(options or {})
        annotation = _argument_type(function, dict(local or {}))
        container, one = payload.container_of(annotation)
        _check_batch(container, values)
        decode = payload.decoder(one)
        if values["slots"] == "process":
            _check_importable(function)
    except BadHandler as error:
        raise BadHandler(f"{where}: {error}") from error.__cause__
    return HandlerSpec(
        topic=topic, channel=channel, function=function, decode=decode, as_list=container is list,
        given=frozenset(options or ()), payload_type=one, **values,
    )  # fmt: skip


def with_options(spec: HandlerSpec, options: Mapping[str, Any]) -> HandlerSpec:
    """``spec`` as if ``options``, each of them allowed, had been written too. Raises BadHandler for what does not go together."""
    if "batch" in options and not spec.batch:
        raise BadHandler(f"{spec.name} takes one message at a time, so it has no batch")
    given = spec.given | set(options)
    values = {name: getattr(spec, name) for name in OPTIONS} | dict(options)
    try:
        _fit(dict.fromkeys(given), values)
    except BadHandler as error:
        raise BadHandler(f"{spec.name}: {error}") from None
    return replace(spec, given=given, **values)


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options with their values, defaults included."""
    for name, value in options.items():
        if name not in OPTIONS:
            raise BadHandler(_unknown(name))
        if not OPTIONS[name].allows(value):
            raise BadHandler(f"{name}={shown(value)} is not {OPTIONS[name]}")
    values: dict[str, Any] = {name: option.default for name, option in OPTIONS.items()} | dict(options)
    if values["slots"] == "process" and "concurrency" not in options:
        values["concurrency"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    values["policy"] = tuple(dict(values["policy"]).items())
    values["middleware"] = hooks.checked(values["middleware"])
    _fit(options, values)
    return values


def _unknown(name: str) -> str:
    nearest = _ELSEWHERE.get(name) or next(iter(get_close_matches(name, OPTIONS, 1, cutoff=0.0)))
    return f"unknown option {name!r}: did you mean {nearest!r}? The options are {', '.join(OPTIONS)}"


def _fit(given: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Make defaults follow what was given; refuse what was given and can never be used."""
    for name in ("concurrency", "batch"):
        if values[name] <= values["max_in_flight"]:
            continue
        if "max_in_flight" not in given:
            values["max_in_flight"] = values[name]
        elif name not in given:
            values[name] = values["max_in_flight"]
        else:
            raise BadHandler(
                f"{name}={values[name]} can never be reached with max_in_flight={values['max_in_flight']}: "
                f"raise max_in_flight or lower {name}"
            )
    if "linger" in given and "batch" not in given:
        raise BadHandler("linger= is the wait for a batch to fill: give batch= too, or drop linger=")


def _check_batch(container: type | None, values: Mapping[str, Any]) -> None:
    if container is not None and not values["batch"]:
        raise BadHandler(f"a handler of a {container.__name__} needs its size: add batch=100 to @handler")
    if container is None and values["batch"]:
        raise BadHandler(
            f"batch={values['batch']} hands over a Batch: annotate the argument with Batch, or drop batch= "
            "(Batch[Order] and list[Order] have what each body decodes to)"
        )


def _check_importable(function: Callable[..., object]) -> None:
    """A slot process imports the module and takes the function from it by its name."""
    if function.__module__ == "__main__":
        raise BadHandler('slots="process" imports the module once more: put the handler in one of its own, not in the script')
    if not all(part.isidentifier() for part in function.__qualname__.split(".")):
        raise BadHandler('slots="process" finds the function by its name: use a def at the top of a module')


def _argument_type(function: Callable[..., object], local: dict[str, Any]) -> Any:
    """The annotation of the one argument, strings resolved; Message when there is none."""
    if not isinstance(function, FunctionType):
        raise BadHandler("it must be a plain function: decorate a def at the top of a module")
    plain = inspect.unwrap(function)
    if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        raise BadHandler("a handler is not async: write def, blocking calls yield to other handlers by themselves")
    if inspect.isgeneratorfunction(plain):
        raise BadHandler("a handler does not yield: what it publishes, it publishes with publish()")
    argument = _only_argument(function)
    if argument.annotation is inspect.Parameter.empty:
        return Message
    return _resolve(argument, plain, local)


def _only_argument(function: Callable[..., object]) -> inspect.Parameter:
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not positional or needed[1:] or needed[:1] not in ([], [positional[0].name]):
        takes = inspect.Signature(parameters)
        raise BadHandler(f"a handler takes exactly one argument, this one takes {takes}: take the message, or its decoded body")
    return positional[0]


def _resolve(argument: inspect.Parameter, function: FunctionType, local: dict[str, Any]) -> Any:
    holder = SimpleNamespace(__annotations__={"argument": argument.annotation})
    try:
        return get_type_hints(holder, function.__globals__, local)["argument"]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise BadHandler(
            f"the annotation {argument.annotation!r} cannot be resolved ({error}): define or import it above the handler, "
            "not under TYPE_CHECKING"
        ) from error


@dataclass(frozen=True, slots=True)
class _Entry:
    spec: HandlerSpec
    module: str
    declared_in: str
    loaded_as: object
    """The import system's own spec of the module: a new one whenever the module is imported again."""

    @property
    def complete(self) -> HandlerSpec:
        """With the middleware that its module is in, which may be declared after it."""
        outer = hooks.declared_for(self.declared_in)
        return replace(self.spec, middleware=hooks.each_once((*outer, *self.spec.middleware))) if outer else self.spec


class _Registry:
    """The handlers of this process, by topic and channel."""

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}

    def add(self, spec: HandlerSpec) -> None:
        """Raises BadHandler when another function has this topic and channel."""
        module = spec.function.__module__
        loaded_as = getattr(sys.modules.get(module), "__spec__", None)
        self._forget_earlier_imports(module, loaded_as)
        other = self.entries.get(spec.name)
        if other and not _replaces(spec.function, other.spec.function, notebook=loaded_as is None):
            raise BadHandler(
                f"{locate(spec.function)}: {spec.name} has a handler already, {locate(other.spec.function)}: "
                "give one of them a channel of its own"
            )
        self.entries[spec.name] = _Entry(spec, module, _being_imported() or module, loaded_as)

    def _forget_earlier_imports(self, module: str, loaded_as: object) -> None:
        stale = [name for name, e in self.entries.items() if e.module == module and e.loaded_as is not loaded_as]
        for name in stale:
            del self.entries[name]


def _being_imported() -> str:
    """The module that is being executed: one may declare a function of another, or have it declared by it."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if frame.f_code.co_name == "<module>" and getattr(
            getattr(sys.modules.get(name), "__spec__", None), "_initializing", False
        ):
            return str(name)
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _replaces(function: Callable[..., object], other: Callable[..., object], *, notebook: bool) -> bool:
    """Whether ``function`` is ``other`` executed again: one def run twice, or a cell of a notebook."""
    if notebook:
        return (function.__module__, function.__qualname__) == (other.__module__, other.__qualname__)
    return locate(function) == locate(other)


_registry = _Registry()
