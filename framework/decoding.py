"""Makes types ready to be decoded into from any thread. It decodes nothing itself."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def prepared(kind: type[T]) -> type[T]:
    """Have msgspec work the type out now, when it is declared. Decorates what ``decode`` and ``convert`` make; a module that
    keeps a ``Decoder`` of it has done the same.

    msgspec (0.22) does it at the first use otherwise, and lets go of the GIL meanwhile. A second thread that decodes into the
    same type then finds a part of it: of 87 workers whose page was asked as they began three ended by SIGSEGV."""
    msgspec.json.Decoder(kind)
    return kind
