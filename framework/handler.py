"""@handler and HandlerSpec: a function bound to a topic and a channel, every option checked at import."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import FunctionType, SimpleNamespace
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, get_type_hints

from framework import names, payload
from framework.errors import Backoff, BadHandler, BadName, HandlerTimeout, Reject, Retry
from framework.message import Message

Action: TypeAlias = type[Retry] | type[Reject] | type[Backoff] | Retry | Reject | Backoff
Policy: TypeAlias = tuple[tuple[type[Exception], Action], ...]


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


@dataclass(frozen=True, slots=True)
class Option:
    """The rule of one option."""

    default: float
    least: float
    most: float
    unit: str
    whole: bool = True
    above: bool = False
    """``least`` itself is too little."""

    def allows(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        kind = "whole number" if self.whole else "number"
        low = f"above {self.least:g}" if self.above else f"from {self.least:g}"
        return f"a {kind} of {self.unit} {low} to {self.most:g}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The rule of an option that is one of a few words; the first is the default."""

    words: tuple[str, ...]

    @property
    def default(self) -> str:
        return self.words[0]

    def allows(self, value: object) -> bool:
        return value in self.words

    def __str__(self) -> str:
        return f"one of {', '.join(map(repr, self.words))}"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rule of the option that says what exceptions mean."""

    default: Policy = ()

    def allows(self, value: object) -> bool:
        return isinstance(value, Mapping) and all(_is_error(kind) and _is_action(action) for kind, action in value.items())

    def __str__(self) -> str:
        return (
            "a dict of exception classes, each with Retry, Reject or Backoff, as {ValueError: Reject, OSError: Retry(delay=60)} "
            "(for a call that takes too long there is on_timeout)"
        )


def _is_error(kind: object) -> bool:
    known = (Retry, Reject, Backoff, HandlerTimeout)  # they say themselves what they mean
    return isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, known)


def _is_action(action: object) -> bool:
    actions = (Retry, Reject, Backoff)
    return action in actions or type(action) in actions


#: The options of ``@handler`` and their defaults. ``timeout`` is NSQ's default lease. ``max_in_flight`` is an upper
#: bound: the runtime prefetches only what handlers get through, so it may be large. NSQ counts attempts in 16 bits.
OPTIONS: Mapping[str, Option | Choice | Rules] = {
    "concurrency": Option(default=10, least=1, most=100_000, unit="calls"),
    "max_in_flight": Option(default=1000, least=1, most=1_000_000, unit="messages"),
    "timeout": Option(default=60.0, least=0, most=604_800, unit="seconds", whole=False, above=True),
    "max_attempts": Option(default=10, least=0, most=65_535, unit="deliveries"),
    "batch": Option(default=0, least=1, most=100_000, unit="messages"),
    "linger": Option(default=0.5, least=0, most=3_600, unit="seconds", whole=False),
    "slots": Choice(("greenlet", "thread", "process")),
    "on_timeout": Choice(("retry", "reject")),
    "policy": Rules(),
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
    ``{ValueError: Reject, ConnectionError: Backoff, RateLimited: Retry(delay=60)}``).

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
    return [entry.spec for entry in _registry.entries.values()]


def declared_in(spec: HandlerSpec) -> str:
    """The name of the module that declared ``spec`` when it was imported; else of the one that its function is from."""
    entry = _registry.entries.get(spec.name)
    return entry.declared_in if entry is not None and entry.spec is spec else spec.function.__module__


def make_spec(
    function: Callable[[Any], object],
    topic: str,
    channel: str,
    options: Mapping[str, Any] | None = None,
    local: Mapping[str, Any] | None = None,
) -> HandlerSpec:
    """The spec of ``function``, checked as ``@handler`` checks it but not registered. Raises BadName, BadHandler."""
    where = place_of(function)
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
        given=frozenset(options or ()), **values,
    )  # fmt: skip


def place_of(function: object) -> str:
    """``shop.handlers.bill (shop/handlers.py:12)``; what can be said of something that is no function."""
    if not isinstance(function, FunctionType):
        return f"@handler on {function!r}"
    code = inspect.unwrap(function).__code__
    path = os.path.relpath(code.co_filename)
    path = code.co_filename if path.startswith("..") else path
    return f"{function.__module__}.{function.__qualname__} ({path}:{code.co_firstlineno})"


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options with their values, defaults included."""
    for name, value in options.items():
        if name not in OPTIONS:
            raise BadHandler(_unknown(name))
        if not OPTIONS[name].allows(value):
            raise BadHandler(f"{name}={value!r} is not {OPTIONS[name]}")
    values: dict[str, Any] = {name: option.default for name, option in OPTIONS.items()} | dict(options)
    if values["slots"] == "process" and "concurrency" not in options:
        values["concurrency"] = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    values["policy"] = tuple(dict(values["policy"]).items())
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
                f"{place_of(spec.function)}: {spec.name} has a handler already, {place_of(other.spec.function)}: "
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
    return place_of(function) == place_of(other)


_registry = _Registry()
