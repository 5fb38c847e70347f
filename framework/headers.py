"""The headers of a message: names and values beside its body, checked so that every broker can carry them. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias, overload

from framework.errors import WrongUse, shown

Headers: TypeAlias = Mapping[str, str]

NONE: Headers = MappingProxyType({})
"""Of every message that has none."""
KEY = "idempotency-key"
"""The header that tells what was published twice: two messages with one key are the same to whoever heeds it."""
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class OneEach(Sequence[Headers]):
    """The headers of many messages that have one each, of one name: what a list of dicts says, without the dicts.

    ``values`` are not checked: text of one line.
    """

    __slots__ = ("name", "values")

    def __init__(self, name: str, values: Sequence[str]) -> None:
        self.name = name
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Headers]:
        return ({self.name: value} for value in self.values)

    @overload
    def __getitem__(self, index: int) -> Headers: ...
    @overload
    def __getitem__(self, index: slice) -> OneEach: ...
    def __getitem__(self, index: int | slice) -> Headers | OneEach:
        if isinstance(index, slice):
            return OneEach(self.name, self.values[index])
        return {self.name: self.values[index]}


def check(headers: object) -> dict[str, str]:
    """A copy of ``headers``. Raises WrongUse unless each name is a token of RFC 9110 and each value text of one line."""
    if not isinstance(headers, Mapping):
        raise WrongUse(f"headers={shown(headers)}: give a dict of names and values, as {{'traceparent': '00-...'}}")
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise WrongUse(f"headers: {shown(name)} is no name: use letters, digits and - _ .")
        if not isinstance(value, str) or _CONTROLS.search(value):
            raise WrongUse(f"headers: {name}={shown(value)} is not text of one line: encode it, as by base64")
    return dict(headers)


def without_surrogates(headers: Headers) -> dict[str, str]:
    """A copy of ``headers`` with lone surrogates escaped, which no encoder takes: NATS shows bytes so that are no UTF-8."""
    return {_escaped(name): _escaped(value) for name, value in headers.items()}


def _escaped(text: str) -> str:
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def known(headers: Headers) -> Headers:
    """``headers`` of another program, if they may be published; else none."""
    try:
        return check(headers) or NONE
    except WrongUse:
        return NONE
