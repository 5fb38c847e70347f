"""One regular expression out of many, for Java, which tries the alternatives of one in turn at every character of a line.

So that most characters cost one look at a class: an expression is tried only where one of its alternatives may begin, and those
that begin alike are tried together. An alternative therefore begins with a character that is rare in lines, or with a class of
such, and has the word before that character in a look behind from there: ``\\((?<=sleep\\()\\d`` finds what ``sleep\\(\\d`` does.
What may stand far before is looked for last, in a look behind of its own: in one with the word, Java tries the word from every
place where the other may be, and one hostile line of 512 characters took 40 ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_START = re.compile(r"(?:\\A)?(?:\[(?P<class>[^]^-]+)\]|(?P<one>\\[^A-Za-z0-9]|[a-z0-9/_=:'<]))(?![?*{])")
_LITERAL = re.compile(r"(?:\\[^A-Za-z0-9]|[a-z0-9/_=:'<])(?![?*+{])")
_ESCAPED_OR_CLASS, _GROUP = re.compile(r"\\.|\[[^]]*\]"), re.compile(r"\([^()]*\)")
_LEVELS = 2  # the first character, which is a slash mostly, and the one after it


def words(patterns: str, **parts: str) -> tuple[str, ...]:
    """The alternatives in a text, apart by white space; ``{end}`` ends a path, and ``{name}`` is the one of ``parts``."""
    for name, part in {"end": r"(?:\?|\z)", **parts}.items():
        patterns = patterns.replace(f"{{{name}}}", part)
    return tuple(patterns.split())


def one_of(alternatives: Sequence[str]) -> str:
    """An expression that is found where one of ``alternatives`` is; in them a dot is any character, a line's end too.

    Raises ValueError for one whose beginning it cannot tell, and for one that is several: it has a bar outside of its groups.
    """
    for one in alternatives:
        if _is_several(one):
            raise ValueError(f"{one} is several alternatives: name them one by one, or put them into a group")
    return f"(?s)(?=[{''.join(dict.fromkeys(map(_start, alternatives)))}])(?:{_grouped(alternatives, _LEVELS)})"


def _start(alternative: str) -> str:
    """With what it begins, as a part of a class. A class with a hyphen would be another one beside others."""
    if not (found := _START.match(alternative)):
        raise ValueError(f"{alternative} must begin with a character or with a class, so that it is tried there alone")
    return found["class"] or found["one"]


def _is_several(alternative: str) -> bool:
    bare, outer = _ESCAPED_OR_CLASS.sub("", alternative), ""
    while bare != outer:
        outer, bare = bare, _GROUP.sub("", bare)
    return "|" in outer


def _grouped(alternatives: Iterable[str], levels: int) -> str:
    groups: dict[str, list[str]] = {}
    for one in alternatives:
        literal = _LITERAL.match(one) if levels else None
        groups.setdefault(literal[0] if literal else "", []).append(one)
    return "|".join(
        f"{first}(?:{_grouped((one[len(first) :] for one in same), levels - 1)})" if first else "|".join(same)
        for first, same in groups.items()
    )
