"""One word, one meaning: names at which newcomers stumbled are gone, or stand for the one thing that the glossary says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from framework.testing.servers import ROOT

GLOSSARY = (ROOT / "docs" / "architecture.md").read_text().partition("## Glossary")[2]

GONE = {
    "desk", "bell", "bells", "intake", "demand", "pipe", "outlet", "outlets", "restraint", "parcels", "params", "aside",
    "remains", "noted", "Room", "Link", "Outlet", "Outlets", "Desk", "Bell",
}  # fmt: skip
"""No module, class, function, parameter or variable is called so."""

MEANS = {
    "Line": (("/dial.py", "nats_route/line.py"), "**line**: a stream to a node that was dialled"),
    "Watch": (("history/watch.py", "otel/watch.py", "sentry/watch.py"), "**watch**: what looks on around each call"),
    "Place": (("nats/place.py", "rocketmq/queues.py"), "**place**: what a connection reads from"),
    "Turns": (("engine/turns.py",), "**turn**: one round of the hub"),
    "LaterTopic": (("middleware/later.py",), "One round through that topic is a **hop**"),
    "Breaker": (("engine/breaker.py",), "**breaker**: holds a handler back"),
    "RemoteSlots": (("engine/remote_slots.py",), "**remote slot**: where a slot"),
}
"""A class -> the files that may have one of its name, and how the glossary begins to say what it is."""

ONLY_IN = {
    "buried": ("transports/beanstalkd/",),
    "_pending": ("transports/nsq/publish_link.py", "transports/beanstalkd/publish_link.py", "transports/rocketmq/session.py"),
    "hold": ("testing/",),
    "_hold": ("testing/",),
    "_held": ("testing/",),
    "Held": ("testing/",),
}
"""A name that lasts longer than a function runs -> where it may be."""


class Given(NamedTuple):
    """A name that the code gives."""

    name: str
    file: str
    line: int
    lasts: bool
    """It is that of a module, a class, a function or an attribute."""
    node: ast.AST

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


@cache
def given() -> tuple[Given, ...]:
    files = (file for room in ("framework", "workers") for file in sorted((ROOT / room).rglob("*.py")))
    return tuple(one for file in files for one in names(file))


def names(file: Path) -> Iterator[Given]:
    tree = ast.parse(file.read_text())
    path = str(file.relative_to(ROOT))
    yield Given(file.stem, path, 1, True, tree)
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield Given(name, path, node.lineno, True, node)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield Given(name, path, node.lineno, True, node)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield Given(name, path, node.lineno, False, node)


def test_nothing_is_called_what_nobody_understood() -> None:
    assert [str(one) for one in given() if one.name.lstrip("_") in GONE] == []


@pytest.mark.parametrize("word", MEANS)
def test_a_class_of_that_name_is_what_the_glossary_says(word: str) -> None:
    files, words = MEANS[word]
    made = [one for one in given() if one.name == word and isinstance(one.node, ast.ClassDef)]
    assert made
    assert [str(one) for one in made if not one.file.endswith(files)] == []
    assert words in " ".join(GLOSSARY.split())


def test_a_watch_is_an_observer() -> None:
    watches = [one.node for one in given() if one.name == "Watch"]
    assert [ast.unparse(base) for node in watches if isinstance(node, ast.ClassDef) for base in node.bases] == ["Observer"] * 3


@pytest.mark.parametrize("word", ONLY_IN)
def test_a_name_that_lasts_is_where_it_means_that(word: str) -> None:
    rooms = tuple(f"framework/{room}" for room in ONLY_IN[word])
    assert [str(one) for one in given() if one.name == word and one.lasts and not one.file.startswith(rooms)] == []


def test_room_is_how_many_more_something_can_take() -> None:
    asked = [one.node for one in given() if one.name == "room" and isinstance(one.node, ast.FunctionDef)]
    assert {ast.unparse(node.returns) for node in asked if isinstance(node, ast.FunctionDef) and node.returns} == {"int"}


def test_later_is_the_topic_where_messages_wait() -> None:
    """Or its name."""
    kinds = {
        ast.unparse(one.node.annotation)
        for one in given()
        if one.name == "later" and isinstance(one.node, ast.arg) and one.node.annotation is not None
    }
    assert kinds <= {"LaterTopic", "LaterTopic | None", "PutsOff", "Keeps | None", "str"}


def test_nsqd_has_one_word_for_what_is_delivered_again() -> None:
    """A retry; it is deferred until it is due."""
    many = {"again", "ahead", "later", "pending"}
    assert [
        str(one) for one in given() if one.file.startswith("framework/nsqd/") and one.lasts and one.name.lstrip("_") in many
    ] == []
    assert all(f"- **{word}**: " in GLOSSARY for word in ("retry", "deferred"))


def test_words_that_are_defined_are_defined_once() -> None:
    terms = [line.partition("**")[2].partition("**")[0] for line in GLOSSARY.splitlines() if line.startswith("- **")]
    assert sorted({term for term in terms if terms.count(term) > 1}) == []
