"""Names the file and the line of app code, for messages about it."""

from __future__ import annotations

import inspect
import os
from types import FunctionType


def locate(function: object) -> str:
    """``shop.handlers.bill (shop/handlers.py:12)``; what can be said of something that is no function."""
    if not isinstance(function, FunctionType):
        return f"@handler on {function!r}"
    code = inspect.unwrap(function).__code__
    return f"{function.__module__}.{function.__qualname__} ({line_of(code.co_filename, code.co_firstlineno)})"


def line_of(file: str, line: int) -> str:
    """``shop/handlers.py:12``, from the current folder where the file is below it."""
    path = os.path.relpath(file)
    return f"{file if path.startswith('..') else path}:{line}"
