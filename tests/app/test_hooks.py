"""Middleware as it is declared: for a handler, a module or a package; and what is refused when a module is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from framework import BadHandler, Message, Middleware, handler
from framework.handler import make_spec, registered
from framework.modules import import_handlers

STEPS = """
from framework import Middleware, handler, use_middleware

class Step(Middleware):
    def __init__(self, name):
        self.name = name
    def around(self, job, call):
        call()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``project(shop="...", **{"shop/again": "..."})`` writes modules and makes them importable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(**files: str) -> None:
        for name, text in {"steps": STEPS, **files}.items():
            file = tmp_path / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def names(*modules: str) -> dict[str, list[str]]:
    """Handler -> the names of its middleware."""
    return {spec.name: [one.name for one in spec.middleware] for spec in import_handlers(modules)}  # type: ignore[attr-defined]


HANDLER = "from steps import *\n@handler({!r}, 'c', middleware=[Step('own'), Step('inner')])\ndef {}(body: bytes): ...\n"


def test_a_packages_middleware_is_outside_of_its_modules_and_that_outside_of_a_handlers(project: Callable[..., None]) -> None:
    project(
        **{
            "shop/__init__": "from steps import *\nuse_middleware(Step('app'), Step('second'))\n",
            "shop/a": HANDLER.format("a", "a") + "use_middleware(Step('module'))\n",  # below its handlers as well
            "shop/b": HANDLER.format("b", "b"),
            "other": HANDLER.format("other", "c"),
        }
    )
    assert names("shop.a", "shop.b", "other") == {
        "a/c": ["app", "second", "module", "own", "inner"],
        "b/c": ["app", "second", "own", "inner"],
        "other/c": ["own", "inner"],
    }


def test_an_object_that_is_named_twice_is_used_once_at_its_outermost_place(project: Callable[..., None]) -> None:
    project(
        shop="from steps import *\nfirst, last = Step('first'), Step('last')\nuse_middleware(first, last)\n"
        "@handler('a', 'c', middleware=[last, first, last])\ndef a(body: bytes): ...\n"
    )
    assert names("shop") == {"a/c": ["first", "last"]}


def test_middleware_may_be_equal_to_another_without_being_it() -> None:
    @dataclass
    class Step(Middleware):  # which cannot be hashed
        name: str

        def around(self, job, call):
            call()

    spec = make_spec(lambda message: None, "a", "c", {"middleware": [Step("x"), Step("x")]})
    assert len(spec.middleware) == 2


def test_a_module_that_is_imported_again_declares_its_middleware_anew(project: Callable[..., None]) -> None:
    project(shop="from steps import *\nuse_middleware(Step('old'))\n" + HANDLER.format("a", "a"))
    assert names("shop")["a/c"][0] == "old"
    del sys.modules["shop"]
    project(shop=HANDLER.format("a", "a") + "# without\n" * 9)
    assert names("shop") == {"a/c": ["own", "inner"]}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("use_middleware(Step)", r"use_middleware \(shop.py:2\): middleware is an object, and Step is a class: write Step\(\)"),
        (
            "use_middleware(print)",
            r"use_middleware \(shop.py:2\): .*print.* is no middleware: derive a class from framework.Middlew",
        ),
        (
            "use_middleware(Step('x'))\nuse_middleware(Step('y'))",
            r"use_middleware \(shop.py:3\): line 2 calls it too: name all middleware of the module in one call",
        ),
        (
            "def setup():\n    use_middleware(Step('x'))\nsetup()",
            r"use_middleware \(shop.py:3\): it is called in setup\(\): call it at the top of a module",
        ),
        (
            "@handler('a', 'c', middleware=Step('x'))\ndef a(body: bytes): ...",
            r"shop.a \(shop.py:2\): middleware=.* is not a list of middleware, as \[Timing\(\), Session\(\)\]",
        ),
        (
            "@handler('a', 'c', middleware=[Step])\ndef a(body: bytes): ...",
            r"shop.a \(shop.py:2\): middleware is an object, and Step is a class",
        ),
    ],
)
def test_a_wrong_declaration_fails_at_import_and_names_its_line(project: Callable[..., None], text: str, sentence: str) -> None:
    project(shop=f"from steps import *\n{text}\n")
    with pytest.raises(BadHandler, match=sentence):
        import_module("shop")


@pytest.mark.parametrize(
    ("hook", "sentence"),
    [
        (
            "def around(self, call): call()",
            r"shop.Mine.around \(shop.py:3\) cannot be called with 2 arg.*write it as `def around\(self",
        ),
        (
            "def around(self, job, call, more): call()",
            r"shop.Mine.around \(shop.py:3\) cannot be called with 2 arguments \(missing",
        ),
        ("def around(self, job, call): yield", r"shop.Mine.around \(shop.py:3\) yields, so it would not run: write it as"),
        ("async def around(self, job, call): call()", r"shop.Mine.around \(shop.py:3\) is async, and nobody awaits it: write"),
        (
            "def arround(self, job, call): call()",
            r"shop.Mine.arround \(shop.py:3\) is no hook of a Middleware: did you mean around\?",
        ),
        ("def before(self): ...", r"shop.Mine has no hook, so it does nothing: write at least one of start, around, after, stop"),
        ("around = 5", r"the hook around, 5, cannot be called .*: write it as `def around\(self, job, call\)`"),
    ],
)
def test_a_wrong_hook_fails_at_import_and_names_its_line_and_its_form(
    project: Callable[..., None], hook: str, sentence: str
) -> None:
    project(shop=f"from steps import *\nclass Mine(Middleware):\n    {hook}\nuse_middleware(Mine())\n")
    with pytest.raises(BadHandler, match=rf"use_middleware \(shop.py:4\): {sentence}"):
        import_module("shop")


def test_what_a_hook_may_look_like_is_accepted(project: Callable[..., None]) -> None:
    """Other names, defaults, ``*arguments``, a static method, one that is set on the object; a property is not looked at."""
    project(
        shop="""
from steps import *
class Any(Middleware):
    def around(self, *arguments): arguments[1]()
class Static(Middleware):
    @staticmethod
    def around(message, go_on, verbose=False): go_on()
class Late(Middleware):
    @property
    def arounds(self): raise RuntimeError("not now")
    def __init__(self): self.around = lambda job, call: call()
use_middleware(Any(), Static(), Late())
@handler("a", "c")
def a(body: bytes): ...
"""
    )
    [spec] = import_handlers(["shop"])
    assert len(spec.middleware) == 3


def test_a_handler_without_middleware_has_none() -> None:
    @handler("a", "c")
    def a(message: Message) -> None: ...

    assert registered()[0].middleware == ()
