"""Makes blocking calls yield (gevent's monkey patching) before app code is imported, and names what came too early."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

_OWN = {"gevent", "greenlet", "zope", "framework", "workers_command", "__main__"}


def patch() -> None:
    """Patch the standard library for greenlets; call it before anything else is imported."""
    from gevent import monkey  # noqa: PLC0415

    monkey.patch_all(Event=False)  # threading's own, on the locks below, are for native threads as well

    from framework import locks  # noqa: PLC0415

    locks.install()


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
