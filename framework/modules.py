"""Imports the modules that ``workers run`` names, and finds which of the declared handlers belong to them."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Collection, Iterable
from importlib import import_module

from framework.bytecode import not_kept_while_fresh
from framework.errors import BadModule, WrongUse
from framework.handler import HandlerSpec, declared_in, registered


def import_handlers(modules: Iterable[str]) -> list[HandlerSpec]:
    """Import ``modules``, the current folder included in the search; returns the handlers that are theirs.

    Raises BadModule for one that cannot be imported, or has no handler, and BadHandler for a wrong declaration.
    """
    modules = list(modules)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with not_kept_while_fresh():
        for name in modules:
            _import(name)
    for name in modules:
        if not handlers_of([name]):
            raise BadModule(_nothing_in(name, modules))
    return handlers_of(modules)


def handlers_of(modules: Collection[str]) -> list[HandlerSpec]:
    """Those declared while one of ``modules`` was executed, or a submodule of it; and what one of them names in ``__all__``."""
    given = {id(function) for name in modules for function in _given_away(name)}
    return [spec for spec in registered() if id(spec.function) in given or _is_within(declared_in(spec), modules)]


def imported_along(handlers: Collection[HandlerSpec]) -> list[HandlerSpec]:
    """The handlers of other modules that the modules of ``handlers`` have imported."""
    own = {(spec.name, id(spec.function)) for spec in handlers}  # to compare each with each took seconds with 5,000 of them
    return [spec for spec in registered() if (spec.name, id(spec.function)) not in own]


def words_of_others(handlers: Collection[HandlerSpec]) -> str:
    """``orders/billing (shop.billing)`` for each that was imported along; empty where there is none."""
    return ", ".join(f"{spec.name} ({declared_in(spec)})" for spec in imported_along(handlers))


def _is_within(module: str, names: Collection[str]) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in names)


def _given_away(module: str) -> list[object]:
    """``from shop.billing import bill`` may be there to call it; in ``__all__`` it is there for others to have."""
    loaded = sys.modules.get(module)
    names = getattr(loaded, "__all__", ())
    try:
        return [getattr(loaded, name, None) for name in names]
    except TypeError:
        raise BadModule(f"{module}: __all__ is {names!r}: it must be a list of names, each in quotes") from None


def _nothing_in(name: str, modules: Collection[str]) -> str:
    others = sorted({declared_in(spec) for spec in registered()})
    unnamed = ", ".join(one for one in others if not _is_within(one, modules))
    words = f"{name}: no function there is decorated with @handler, so there is nothing to run"
    if unnamed:
        return f"{words}; it imports {unnamed}: name that, or list its handlers in the __all__ of {name}"
    if imported := ", ".join(one for one in others if _imports(name, one)):
        return f"{words}; it imports {imported}, which is named as well: leave it out"
    if hasattr(sys.modules.get(name), "__path__"):
        return f"{words}: it is a package that imports none of its modules, so name the one that is meant"
    return words


def _imports(name: str, other: str) -> bool:
    """Whether module ``name`` holds the module ``other``, or a handler of it."""
    wanted = {id(sys.modules.get(other)), *(id(spec.function) for spec in registered() if declared_in(spec) == other)}
    return any(id(one) in wanted for one in vars(sys.modules[name]).values())


def _import(name: str) -> None:
    if name.count("/") == 1 and not os.path.exists(name.partition("/")[0]):  # a handler's, as other verbs take it
        raise BadModule(f"{name!r} is no module: name the module of that handler; all that are in it are run")
    if "/" in name or name.endswith(".py"):
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise BadModule(f"{name!r} is a path: give the module's name, {dotted!r}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise BadModule(f"{name!r} is not a module's name: write it as after `import`, for example shop.handlers")
    try:
        import_module(name)
    except (WrongUse, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise BadModule(_what_it_raised(name, error)) from error
        parent = error.name.rpartition(".")[0]
        if parent in sys.modules and not hasattr(sys.modules[parent], "__path__"):
            raise BadModule(f"{name!r}: {parent!r} is a module, no package: name it, and all handlers in it are run") from error
        raise BadModule(f"there is no module {error.name!r} in {os.getcwd()} or on the Python path: check the name") from error
    except BaseException as error:  # SystemExit, a gevent.Timeout, what the app made itself
        raise BadModule(_what_it_raised(name, error)) from error


def _what_it_raised(name: str, error: BaseException) -> str:
    words = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return f"module {name!r} cannot be imported: {words}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"module {name!r} cannot be imported: {type(error).__name__}: {words} ({os.path.relpath(last.filename)}:{last.lineno})"
