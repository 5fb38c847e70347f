"""Many regular expressions as one that is tried at few characters: it is found where one of them is, and nowhere else."""

from __future__ import annotations

import re
from itertools import product

import pytest

from workers.api_requests.detect.spam.alternatives import one_of, words

MANY = (
    r"/a",
    r"/ab+c",
    r"/\.env",
    r"/\.git/",
    r"/a(?:b|c)d",
    r"[;+]cat",
    r"\((?<=sleep\()\d",
    r"=php:",
    r"\A/only/?\Z",
    r"_(?<=x_)y",
)
PIECES = ("/", "a", "b", "c", "d", ".env", ".git/", ";", "+", "cat", "sleep", "(", "1", "=", "php:", "only", "x", "_y", " ")


def test_it_is_found_where_one_of_them_is() -> None:
    joined = re.compile(one_of(MANY))
    texts = ["".join(pieces) for count in (1, 2, 3) for pieces in product(PIECES, repeat=count)]
    found = {text for text in texts if joined.search(text)}
    assert found == {text for text in texts if any(re.search(one, text) for one in MANY)}
    assert 300 < len(found) < len(texts) - 300


def test_it_is_tried_at_the_characters_alone_with_which_one_of_them_begins() -> None:
    assert one_of(MANY).startswith(r"(?s)(?=[/;+\(=_])")


def test_what_begins_alike_is_tried_together() -> None:
    assert one_of((r"/\.env", r"/\.git", "/x", "=y")) == r"(?s)(?=[/=])(?:/(?:\.(?:env|git)|x(?:))|=(?:y(?:)))"


def test_a_character_that_may_be_missing_or_come_again_is_not_taken_for_the_beginning_of_all() -> None:
    assert one_of(("/a+b", "/a?c", "/ad")) == "(?s)(?=[/])(?:/(?:a+b|a?c|a(?:d)))"


@pytest.mark.parametrize("one", ["(?:a|b)c", ".*x", "a*b", "a?b", "[^/]x", "[ab]*c", "[;-]x", "[a-z]x", r"\d", r"\Ax*", "", "^a"])
def test_one_whose_beginning_cannot_be_told_is_refused_by_name(one: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{one} must begin")):
        one_of(("/a", one))


@pytest.mark.parametrize("one", ["/a|/b", "/(?:a|b)|c", "/[|]|x"])
def test_one_that_is_several_is_refused_by_name(one: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{one} is several")):
        one_of((one,))


@pytest.mark.parametrize("one", [r"/a\|b", "/[|]b", "/(?:a|(?:b|c))d"])
def test_a_bar_inside_is_none_between_alternatives(one: str) -> None:
    assert re.search(one_of((one, "/zz")), {r"/a\|b": "/a|b", "/[|]b": "/|b"}.get(one, "/cd"))


def test_words_stand_apart_by_white_space_and_say_where_a_path_ends() -> None:
    assert words("\n  /a{end}  /b\n /c ") == (r"/a(?:\?|\z)", "/b", "/c")
