"""@handler: what it takes, what it refuses at import and in which words, and that the function stays as it was."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from framework import BadHandler, BadName, Batch, Message, WrongUse, handler
from framework.handler import OPTIONS, make_spec, registered


@dataclass
class Order:
    id: int


class Struct(msgspec.Struct):
    id: int


class Foreign:
    pass


@dataclass
class HasForeign:
    deep: dict[str, list[Foreign]]


def plain(message):
    pass


def local():
    def function(message):
        pass

    return function


async def is_async(message):
    pass


def generates(message):
    yield


def no_argument():
    pass


def two_arguments(message, context):
    pass


def only_by_name(*, message):
    pass


def of_int(message: int):
    pass


def of_list(message: list[Order]):
    pass


def of_nothing_known(message: Missing):  # noqa: F821
    pass


def of_foreign(message: HasForeign):
    pass


def of_batch(batch: Batch):
    pass


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (plain, {"max_retires": 3}, "unknown option 'max_retires': did you mean 'max_attempts'?"),
        (plain, {"concurency": 3}, "did you mean 'concurrency'?"),
        (plain, {"prefetch": 3}, "did you mean 'max_in_flight'?"),
        (plain, {"batch_size": 3}, "did you mean 'batch'?"),
        (plain, {"timeout": 0}, "timeout=0 is not a number of seconds above 0"),
        (plain, {"timeout": -1}, "timeout=-1 is not"),
        (plain, {"timeout": "60"}, "timeout='60' is not a number of seconds"),
        (plain, {"timeout": float("nan")}, "timeout=nan is not"),
        (plain, {"timeout": float("inf")}, "timeout=inf is not"),
        (plain, {"timeout": None}, "timeout=None is not"),
        (plain, {"concurrency": 0}, "concurrency=0 is not a whole number of calls from 1"),
        (plain, {"concurrency": 1.5}, "concurrency=1.5 is not a whole number"),
        (plain, {"concurrency": True}, "concurrency=True is not a whole number"),
        (plain, {"max_in_flight": 0}, "max_in_flight=0 is not"),
        (plain, {"max_attempts": -1}, "max_attempts=-1 is not"),
        (plain, {"max_attempts": 65_536}, "max_attempts=65536 is not"),
        (plain, {"concurrency": 20, "max_in_flight": 5}, "concurrency=20 can never be reached with max_in_flight=5"),
        (of_batch, {"batch": 20, "max_in_flight": 5}, "batch=20 can never be reached with max_in_flight=5"),
        (of_batch, {"batch": 0}, "batch=0 is not"),
        (of_batch, {"batch": 10, "linger": -1}, "linger=-1 is not"),
        (of_batch, {}, "add batch=100 to @handler"),
        (plain, {"batch": 10}, "annotate the argument with Batch, or drop batch="),
        (plain, {"linger": 1}, "give batch= too, or drop linger="),
        (plain, {"slots": "treads"}, "slots='treads' is not one of 'greenlet', 'thread'"),
        (plain, {"slots": 2}, "slots=2 is not one of"),
        (local(), {"slots": "process"}, 'slots="process" finds the function by its name: use a def at the top of a module'),
        (plain, {"pool": "threads"}, "did you mean 'slots'?"),
        (plain, {"on_timeout": "drop"}, "on_timeout='drop' is not one of 'retry', 'reject'"),
        (is_async, {}, "a handler is not async: write def"),
        (generates, {}, "a handler does not yield"),
        (no_argument, {}, "takes exactly one argument, this one takes ()"),
        (two_arguments, {}, "takes exactly one argument, this one takes (message, context)"),
        (only_by_name, {}, "takes exactly one argument, this one takes (*, message)"),
        (of_int, {}, "cannot decode a body to int: annotate the argument with Message, bytes, str, dict, a dataclass"),
        (of_list, {}, "a handler of a list needs its size: add batch=100"),
        (of_nothing_known, {}, "the annotation 'Missing' cannot be resolved"),
        (of_foreign, {}, "cannot decode a body to HasForeign: JSON has no Foreign"),
    ],
)
def test_wrong_use_is_refused_in_one_sentence_that_names_the_function(
    function: Callable[..., Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadHandler) as caught:
        handler("topic", "channel", **options)(function)
    assert words in str(caught.value)
    assert f"{function.__qualname__} (" in str(caught.value)
    assert f"test_handler.py:{function.__code__.co_firstlineno})" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert registered() == []


@pytest.mark.parametrize("name", ["", "a b", "ü", "x" * 65, "#ephemeral", "a/b", None, 7, b"bytes"])
def test_a_bad_topic_or_channel_is_refused(name: Any) -> None:
    with pytest.raises(BadName, match="topic name"):
        handler(name, "channel")(plain)
    with pytest.raises(BadName, match=r"plain \(.*test_handler.py:\d+\): channel name"):
        handler("topic", name)(plain)
    assert registered() == []


@pytest.mark.parametrize("thing", [Foreign(), Foreign, len, plain.__get__(1), staticmethod(plain)])
def test_only_plain_functions_are_handlers(thing: Any) -> None:
    with pytest.raises(BadHandler, match="must be a plain function"):
        handler("topic", "channel")(thing)


def test_two_handlers_for_one_topic_and_channel_are_refused_and_both_are_named() -> None:
    handler("topic", "channel")(plain)
    with pytest.raises(BadHandler, match=r"of_batch \(.*topic/channel has a handler already, .*plain \("):
        handler("topic", "channel", batch=2)(of_batch)
    assert [spec.function for spec in registered()] == [plain]


def test_the_function_stays_the_plain_function() -> None:
    assert handler("topic", "channel")(plain) is plain


def test_one_function_may_handle_two_channels() -> None:
    @handler("topic", "one")
    @handler("topic", "two", concurrency=3)
    def both(message):
        pass

    assert {spec.name: spec.concurrency for spec in registered()} == {"topic/one": 10, "topic/two": 3}


def test_the_defaults_are_those_of_the_table() -> None:
    spec = make_spec(plain, "topic", "channel")
    assert {name: getattr(spec, name) for name in OPTIONS} == {name: option.default for name, option in OPTIONS.items()}


def test_processes_are_as_many_as_there_are_cpus_where_nothing_else_is_said() -> None:
    assert make_spec(plain, "topic", "channel", {"slots": "process"}).concurrency == len(os.sched_getaffinity(0))
    assert make_spec(plain, "topic", "channel", {"slots": "process", "concurrency": 3}).concurrency == 3


def test_a_script_that_is_run_cannot_have_handlers_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "__module__", "__main__")
    with pytest.raises(BadHandler, match="put the handler in one of its own, not in the script"):
        make_spec(plain, "topic", "channel", {"slots": "process"})


def test_a_default_gives_way_to_what_was_given() -> None:
    assert make_spec(plain, "topic", "channel", {"max_in_flight": 3}).concurrency == 3
    assert make_spec(plain, "topic", "channel", {"concurrency": 5000}).max_in_flight == 5000
    assert make_spec(of_batch, "topic", "channel", {"batch": 2000}).max_in_flight == 2000


def test_a_further_argument_with_a_default_is_allowed() -> None:
    def with_default(body: bytes, retries: int = 3, *rest: int, flag: bool = False) -> None:
        pass

    assert make_spec(with_default, "topic", "channel").decode is not None


def test_a_type_declared_inside_a_function_is_found() -> None:
    @dataclass
    class Local:
        x: int

    @handler("topic", "channel")
    def of_local(value: Local) -> None:
        pass

    assert registered()[0].decode is not None


def test_a_return_type_that_exists_for_type_checkers_alone_does_no_harm() -> None:
    def returns_unknown(message: Message) -> OnlyForTypeCheckers:  # noqa: F821
        pass

    assert make_spec(returns_unknown, "topic", "channel").decode is None


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Writes the module ``changing`` and imports it, or imports it again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(text: str) -> Any:
        (tmp_path / "changing.py").write_text("from framework import handler\n" + textwrap.dedent(text))
        importlib.invalidate_caches()
        return importlib.reload(sys.modules["changing"]) if "changing" in sys.modules else importlib.import_module("changing")

    yield load
    sys.modules.pop("changing", None)


def test_importing_a_module_again_replaces_its_handlers(module: Callable[[str], Any]) -> None:
    module("""
        @handler("topic", "old")
        def gone(message): pass
        @handler("topic", "channel")
        def stays(message): pass
    """)
    again = module("""


        @handler("topic", "channel", concurrency=2)
        def stays(message): pass
    """)
    assert [(spec.name, spec.function, spec.concurrency) for spec in registered()] == [("topic/channel", again.stays, 2)]


def test_the_same_name_twice_in_one_module_is_a_mistake(module: Callable[[str], Any]) -> None:
    with pytest.raises(WrongUse, match="has a handler already"):
        module("""
            @handler("topic", "channel")
            def twice(message): pass
            @handler("topic", "channel")
            def twice(message): pass
        """)


def test_a_cell_of_a_notebook_that_is_run_again_replaces_its_handler_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a notebook runs is a module that was loaded from nowhere, and the lines of its cells are elsewhere each time."""
    notebook = ModuleType("a_notebook")
    notebook.__dict__["handler"] = handler
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)

    def run(cell: int, code: str) -> None:
        exec(compile(code, f"<cell {cell}>", "exec"), notebook.__dict__)

    run(1, "@handler('topic', 'channel')\ndef bill(message): pass")
    run(2, "\n\n@handler('topic', 'channel', concurrency=2)\ndef bill(message): pass")
    assert [(spec.function.__name__, spec.concurrency) for spec in registered()] == [("bill", 2)]
    with pytest.raises(BadHandler, match="has a handler already"):
        run(2, "\n\n@handler('topic', 'channel')\ndef ship(message): pass")
