"""Makes blocking calls yield (gevent's monkey patching) before app code is imported, and names what came too early."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType

_OWN = {"gevent", "greenlet", "zope", "framework", "workers_command", "__main__"}


def patch() -> None:
    """Patch the standard library for greenlets; call it before anything else is imported."""
    from gevent import monkey  # noqa: PLC0415

    with _plugins_looked_up_once():
        monkey.patch_all(Event=False)  # threading's own, on the locks below, are for native threads as well

    from framework import hubs, locks  # noqa: PLC0415

    locks.install()
    hubs.guard()


@contextmanager
def _plugins_looked_up_once() -> Iterator[None]:
    """Skips gevent's search for its plugins where no other package that is installed has one.

    gevent reads the entry points of every package for each of the 25 events of ``patch_all``: 170 ms for 100 packages.
    """
    from gevent import events  # noqa: PLC0415

    search = events.notify_and_call_entry_points
    if not has_plugins(sys.path):
        events.notify_and_call_entry_points = events.notify
    try:
        yield
    finally:
        events.notify_and_call_entry_points = search


def has_plugins(paths: list[str]) -> bool:
    """Whether a package in one of the folders ``paths`` may declare a plugin of gevent; what is no folder, a zip file, may.

    gevent's own does not count: it only warns of a way of patching that is not ours.
    """
    return any(os.path.isfile(path) or any(map(_is_plugin, _packages(path))) for path in (one or "." for one in paths))


def _packages(path: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(path) as entries:  # Python itself passes over what it cannot read
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")) and not entry.name.startswith("gevent-"):
                yield entry.path


def _is_plugin(package: str) -> bool:
    with suppress(OSError), open(os.path.join(package, "entry_points.txt"), "rb") as file:
        return b"gevent.plugins." in file.read()
    return False


def is_patched() -> bool:
    """Whether ``patch`` has run in this process."""
    if "gevent.monkey" not in sys.modules:
        return False
    from gevent import monkey  # noqa: PLC0415

    return bool(monkey.is_module_patched("socket"))


def imported_too_early() -> list[str]:
    """The modules that took something from the standard library by name before it was patched.

    What they took blocks every handler of the process: ``from socket import create_connection``, for example.
    """
    return sorted(f"{name} ({', '.join(held)})" for name, module in _foreign() if (held := _unpatched(module)))


def _foreign() -> Iterator[tuple[str, ModuleType]]:
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in _OWN and isinstance(module, ModuleType):
            yield name, module


def _unpatched(module: ModuleType) -> list[str]:
    originals = _originals()
    return sorted(name for name, value in vars(module).items() if id(value) in originals)


def _originals() -> set[int]:
    from gevent import monkey  # noqa: PLC0415

    return {id(value) for items in monkey.saved.values() for value in items.values() if callable(value)}
