"""What decoding JSON needs besides msgspec: types that any thread may decode into, and the errors of unreadable bytes."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what was expected. RecursionError: brackets within thousands of brackets, also in a
field that nobody reads."""


def prepared(kind: type[T]) -> type[T]:
    """Have msgspec work the type out now, when it is declared. Decorates what ``decode`` and ``convert`` make; a module that
    keeps a ``Decoder`` of it has done the same.

    msgspec (0.22) does it at the first use otherwise, and lets go of the GIL meanwhile. A second thread that decodes into the
    same type then finds a part of it: of 87 workers whose page was asked as they began three ended by SIGSEGV."""
    msgspec.json.Decoder(kind)
    return kind
