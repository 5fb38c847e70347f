"""Middleware: what an app has run around its handlers' calls. How it is written, declared and checked; not who calls it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import FrameType
from typing import Any, Literal, NamedTuple, TypeAlias

from framework.errors import BadHandler, shown
from framework.message import Message
from framework.source import line_of, locate

Ending: TypeAlias = Literal["finished", "requeued", "dead", "lease_lost", "lost"]
"""How a delivery ended, in the words of the ledger."""


class Middleware:
    """The base of middleware: derive a class, write the hooks that you need, and declare an object of it.

    One object serves all handlers that it is declared for, and many calls at once. docs/middleware.md says where each hook runs.
    """

    def start(self) -> None:
        """Once in each process that makes calls, before the first: in the worker, and in each slot process.

        What is raised here ends the start of the worker, in one sentence.
        """

    def around(self, job: Any, call: Callable[[], None], /) -> None:
        """Around a call of the handler, where the handler runs: in its greenlet, its thread, its process.

        ``job``: the Message, or of a batch handler the Batch of them, before bodies are decoded. ``call()`` makes the call, once,
        and raises what the handler raises. What is raised here is the handler's failure. To return without ``call()``, or
        without what it raised, is a failure as well, so that no message ends by mistake: to end it, raise Skip.
        """
        call()

    def after(self, message: Message, outcome: Ending, /) -> None:
        """After a delivery that was the handler's has ended, once for each message, in the worker, also of calls elsewhere.

        ``outcome`` is the word of the ledger: "finished", "requeued" (it comes again), "dead" (its dead letter is stored), or
        "lease_lost": it was this worker's no more, by a lost lease or at a stop, and comes again; or, of a broker that delivers
        nothing twice, "lost": its call failed, and it does not come again. What is raised here is logged.
        """

    def stop(self) -> None:
        """Once in each process where it was started, after the last call. What is raised here is logged.

        It has what is left of ``--drain``, and a second at least; in a slot process a second. A process that is killed has none.
        """


class Finished(NamedTuple):
    """Messages that one slot has finished, one after another or ``together``. The list is the caller's and changes afterwards."""

    node: str
    attempts: int
    """Of each of them."""
    ids: list[bytes]
    began: float
    """Seconds since 1970: when the slot began with the first of them."""
    until: float
    """When the last of them ended; 5 ms later at most, if there are several, and not ``together``."""
    together: bool = False
    """By one call, for a Batch."""


class Observer(Middleware):
    """Middleware of the framework's own that settings put around handlers, also where they run in other processes."""

    def received(self, messages: Sequence[Message], /) -> None:
        """In the worker: these have come, together, from one connection. They have not been started."""

    def missed(self, job: Any, error: BaseException, /) -> None:
        """In the worker: a call in a thread or a process has failed by ``error``; ``around`` may have seen that there."""

    def elsewhere(self) -> tuple[str, bytes] | None:
        """For a slot process: a module, and what its ``observe(spec, options)`` is to be given to have this one there; None where
        it has nothing to do there."""
        raise NotImplementedError

    def failed(self, job: Any, error: BaseException | None, /) -> None:
        """In the worker: a call has failed by ``error``, wherever it was made, and nobody has judged that yet. None: the call for
        a Batch has returned, and some of its messages have failed (``Batch.outcomes``)."""

    def ended(self, message: Message, outcome: Ending, began: float, /) -> None:
        """As ``after``, with when its slot began with the message, seconds since 1970. Whoever has this has ``finished`` too."""

    def finished(self, run: Finished, /) -> None:
        """In place of ``ended``, of messages that were finished without a word. At the latest 100 ms after they have ended."""


_FORMS = {
    "start": "start(self)",
    "around": "around(self, job, call)",
    "after": "after(self, message, outcome)",
    "stop": "stop(self)",
}
"""How each hook is declared."""


def overridden(one: Middleware, hook: str) -> bool:
    """Whether ``one`` has a ``hook`` of its own."""
    return getattr(type(one), hook) is not getattr(Middleware, hook) or hook in vars(one)


def observes(one: Observer, hook: str) -> bool:
    """Whether ``one`` has a ``hook`` of its own, of those that only observers have."""
    return getattr(type(one), hook) is not getattr(Observer, hook)


def name_of(one: Middleware) -> str:
    """``shop.timing.Timing``"""
    return f"{type(one).__module__}.{type(one).__qualname__}"


def each_once(middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """``middleware`` without repeats: an object that is named twice keeps its first place. Compared by identity, as an app's
    class may have an ``__eq__``."""
    return tuple({id(one): one for one in middleware}.values())


# -- declaring


@dataclass(frozen=True, slots=True)
class _Declared:
    middleware: tuple[Middleware, ...]
    line: int
    loaded_as: object
    """The import system's own spec of the module: a new one whenever the module is imported again."""


_declared: dict[str, _Declared] = {}
"""By module."""


def use_middleware(*middleware: Middleware) -> None:
    """Have ``middleware``, outermost first, around every handler that the calling module declares, and those of its submodules.

    In the ``__init__`` of a package it is an app's. What a package declares is outside of what its modules declare, and that is
    outside of what ``@handler(middleware=...)`` names. Raises BadHandler, in one sentence that names the line and the fix.
    """
    frame = sys._getframe(1)
    where = f"use_middleware ({line_of(frame.f_code.co_filename, frame.f_lineno)})"
    try:
        _declare(frame, middleware)
    except BadHandler as error:
        raise BadHandler(f"{where}: {error}") from None


def _declare(frame: FrameType, middleware: tuple[Middleware, ...]) -> None:
    if frame.f_code.co_name != "<module>":
        raise BadHandler(f"it is called in {frame.f_code.co_name}(): call it at the top of a module, whose handlers it is for")
    module = str(frame.f_globals.get("__name__"))
    loaded_as = _loaded_as(module)
    before = _declared.get(module)
    if before is not None and before.loaded_as is loaded_as is not None:  # a cell of a notebook may be run again
        raise BadHandler(f"line {before.line} calls it too: name all middleware of the module in one call, outermost first")
    _declared[module] = _Declared(checked(middleware), frame.f_lineno, loaded_as)


def declared_for(module: str) -> tuple[Middleware, ...]:
    """What ``use_middleware`` declares for the handlers of ``module``, outermost first."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    found = [(name, _declared[name]) for name in names if name in _declared]
    return tuple(each for name, one in found if one.loaded_as is _loaded_as(name) for each in one.middleware)


def _loaded_as(module: str) -> object:
    return getattr(sys.modules.get(module), "__spec__", None)


# -- checking


def checked(middleware: Iterable[Any]) -> tuple[Middleware, ...]:
    """``middleware``, each that can be called as it shall be. Raises BadHandler."""
    found = tuple(middleware)
    for one in found:
        _check(one)
    return each_once(found)


def _check(one: Any) -> None:
    if isinstance(one, type) and issubclass(one, Middleware):
        raise BadHandler(f"middleware is an object, and {one.__qualname__} is a class: write {one.__qualname__}()")
    if not isinstance(one, Middleware):
        raise BadHandler(f"{shown(one)} is no middleware: derive a class from framework.Middleware, and give an object of it")
    _check_names(one)
    for hook in filter(lambda hook: overridden(one, hook), _FORMS):
        _check_form(getattr(one, hook), hook)


def _check_names(one: Middleware) -> None:
    """What is nearly a hook would never be called."""
    for name in [name for name in dir(one) if not name.startswith("_") and name not in _FORMS]:
        near, method = get_close_matches(name, _FORMS, 1, cutoff=0.85), inspect.getattr_static(one, name)
        if near and callable(method):
            raise BadHandler(f"{_where(method, name)} is no hook of a Middleware: did you mean {near[0]}?")
    if not any(overridden(one, hook) for hook in _FORMS):
        raise BadHandler(f"{name_of(one)} has no hook, so it does nothing: write at least one of {', '.join(_FORMS)}")


def _check_form(method: Any, hook: str) -> None:
    where, form = _where(method, hook), f"write it as `def {_FORMS[hook]}`"
    plain = inspect.unwrap(getattr(method, "__func__", method))
    if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        raise BadHandler(f"{where} is async, and nobody awaits it: {form}")
    if inspect.isgeneratorfunction(plain):
        raise BadHandler(f"{where} yields, so it would not run: {form}")
    given = [None] * _FORMS[hook].count(",")
    try:
        inspect.signature(method).bind(*given)
    except TypeError as error:
        raise BadHandler(f"{where} cannot be called with {len(given)} arguments ({error}): {form}") from None


def _where(method: Any, hook: str) -> str:
    function = getattr(method, "__func__", method)
    return locate(function) if inspect.isfunction(function) else f"the hook {hook}, {function!r},"
