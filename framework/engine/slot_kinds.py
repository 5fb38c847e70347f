"""Chooses the kind of remote slots for the slots of a handler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework.engine.remote_slots import RemoteSlots
from framework.handler import HandlerSpec


def remote_slots_for(spec: HandlerSpec, hub: Any, environ: Mapping[str, str] | None = None) -> RemoteSlots | None:
    """Those that ``spec.slots`` asks for; None for greenlets. Each kind is imported by those who use it.

    ``environ``: what another process finds in its environment beside what is in ours: how ``publish`` is to work there.
    """
    if spec.slots == "thread":
        from framework.engine.slots_thread import ThreadPlaces  # noqa: PLC0415

        return ThreadPlaces(spec, hub)
    if spec.slots == "process":
        from framework.engine.slots_process import ProcessPlaces  # noqa: PLC0415

        return ProcessPlaces(spec, hub, environ)
    return None
