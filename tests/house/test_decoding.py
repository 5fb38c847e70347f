"""What is decoded into is worked out when it is declared: two threads that meet at the first use crash the process."""

from __future__ import annotations

import ast
import importlib
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from framework.decoding import prepared
from framework.testing.servers import ROOT

FILES = [file for folder in ("framework", "workers", "pyspark_nsq") for file in sorted((ROOT / folder).rglob("*.py"))]
MEANT = [file for file in FILES if "msgspec" in file.read_text() or "_get(" in file.read_text()]
LOOKS = {"isinstance", "issubclass", "cast", "next"}
"""Functions that take a class and decode nothing."""


def test_a_type_that_is_not_worked_out_is_told_from_one_that_is() -> None:
    class One(msgspec.Struct):
        number: int

    assert not is_worked_out(One)
    assert is_worked_out(prepared(One))


@pytest.mark.parametrize("file", MEANT, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_is_decoded_into_is_worked_out_at_import(file: Path) -> None:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    if name.endswith("__main__"):
        return
    module = pytest.importorskip(name) if name.startswith("workers") else importlib.import_module(name)
    assert [one.__name__ for one in handed_on(module, file) if not is_worked_out(one)] == []


def is_worked_out(kind: Any) -> bool:
    """msgspec looks at the annotations once."""
    own = kind.__annotations__
    kind.__annotations__ = dict.fromkeys(own, "not_a_name")
    try:
        msgspec.json.Decoder(kind)
    except NameError:
        return False
    finally:
        kind.__annotations__ = own
    return True


def handed_on(module: ModuleType, file: Path) -> Iterator[type]:
    """The Structs that functions of the module pass to others, alone or in a list: to be decoded into, perhaps."""
    for call in ast.walk(ast.parse(file.read_text())):
        if not isinstance(call, ast.Call) or (isinstance(call.func, ast.Name) and call.func.id in LOOKS):
            continue
        for given in [*call.args, *(one.value for one in call.keywords)]:
            for part in ast.walk(given) if isinstance(given, ast.Subscript | ast.BinOp) else [given]:
                found = getattr(module, part.id, None) if isinstance(part, ast.Name) else None
                for one in typing.get_args(found) or (found,):
                    if inspect.isclass(one) and issubclass(one, msgspec.Struct) and one.__struct_fields__:
                        yield one
