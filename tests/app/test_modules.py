"""Which handlers a module stands for: its own, not those that it has imported along."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from framework.errors import BadModule
from framework.modules import import_handlers, words_of_others

ORDERS = """
from framework import handler
@handler("orders", "billing")
def bill(body: bytes) -> None: ...
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """``project(shop="...", **{"shop/again": "..."})`` writes modules and makes them importable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def write(**files: str) -> None:
        for name, text in files.items():
            file = tmp_path / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def names(*modules: str) -> list[str]:
    return [spec.name for spec in import_handlers(modules)]


def test_handlers_that_are_imported_along_are_not_run_and_are_named(project: Callable[..., None]) -> None:
    project(
        **{
            "orders/__init__": "",
            "orders/first": ORDERS,
            "orders/again": "from framework import handler\nfrom orders.first import bill\n"
            "@handler('orders.again', 'billing')\ndef again(body: bytes) -> None: bill(body)\n",
        }
    )
    handlers = import_handlers(["orders.again"])
    assert [spec.name for spec in handlers] == ["orders.again/billing"]
    assert words_of_others(handlers) == "orders/billing (orders.first)"
    assert sorted(names("orders.again", "orders.first")) == ["orders.again/billing", "orders/billing"]


def test_a_package_stands_for_itself_and_its_submodules(project: Callable[..., None]) -> None:
    project(
        **{
            "other": ORDERS.replace("orders", "others"),
            "shop/__init__": "import other, shop.a, shop.deep.b\n" + ORDERS.replace("billing", "audit"),
            "shop/a": ORDERS,
            "shop/deep/__init__": "",
            "shop/deep/b": ORDERS.replace("billing", "mail"),
            "shopping": ORDERS.replace("billing", "list"),
        }
    )
    assert sorted(names("shop")) == ["orders/audit", "orders/billing", "orders/mail"]
    assert names("shop.deep") == ["orders/mail"]
    assert sorted(names("shop", "shopping"))[-2:] == ["orders/list", "orders/mail"]


def test_what_a_module_lists_in_all_is_its_own(project: Callable[..., None]) -> None:
    project(orders=ORDERS, everything="from orders import bill\n__all__ = ['bill']\n")
    assert names("everything") == ["orders/billing"]


@pytest.mark.parametrize(
    "text",
    [
        "import library\nlibrary.make('one')\nlibrary.make('two')\n",
        "from framework import handler as h\nfrom library import plain\nh('orders', 'one')(plain)\nh('orders', 'two')(plain)\n",
    ],
    ids=["by a function of another module", "of a function of another module"],
)
def test_what_a_module_declares_is_its_own_wherever_the_function_is_from(project: Callable[..., None], text: str) -> None:
    project(
        library="from framework import handler\ndef plain(body: bytes) -> None: ...\n"
        "def make(channel):\n    @handler('orders', channel)\n    def made(body: bytes) -> None: ...\n"
        "@handler('library', 'own')\ndef own(body: bytes) -> None: ...\n",
        app=text,
    )
    handlers = import_handlers(["app"])
    assert [spec.name for spec in handlers] == ["orders/one", "orders/two"]
    assert words_of_others(handlers) == "library/own (library)"


def test_a_module_without_handlers_of_its_own_is_refused_with_the_modules_that_have_some(project: Callable[..., None]) -> None:
    project(orders=ORDERS, worker="import orders\n", **{"empty/__init__": "", "empty/a": ORDERS.replace("orders", "o")})
    with pytest.raises(
        BadModule,
        match=r"worker: no function .* it imports orders: name that, or list its handlers in the __all__ of worker$",
    ):
        import_handlers(["worker"])
    with pytest.raises(BadModule, match=r"worker: no function there .* it imports orders, which is named as well: leave it out$"):
        import_handlers(["orders", "worker"])
    with pytest.raises(BadModule, match=r"empty: .* a package that imports none of its modules"):
        import_handlers(["orders", "empty"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shop.orders.bill", "'shop.orders' is a module, no package: name it, and all handlers in it are run"),
        ("shop/orders.py", "'shop/orders.py' is a path: give the module's name, 'shop.orders'"),
        ("shop/orders", "'shop/orders' is a path: give the module's name, 'shop.orders'"),
        ("./shop", "'./shop' is a path: give the module's name, 'shop'"),
        ("orders/billing", "'orders/billing' is no module: name the module of that handler; all that are in it are run"),
    ],
)
def test_what_is_no_module_is_refused_with_the_module_that_may_be_meant(
    name: str, words: str, project: Callable[..., None]
) -> None:
    project(**{"shop/__init__": "", "shop/orders": ORDERS})
    with pytest.raises(BadModule, match=re.escape(words)):
        import_handlers([name])


@pytest.mark.parametrize("wrong", ["['bill', 5]", "[bill]", "None"])
def test_an_all_that_does_not_hold_names_is_refused_in_one_sentence(project: Callable[..., None], wrong: str) -> None:
    project(orders=f"{ORDERS}\n__all__ = {wrong}\n")
    with pytest.raises(BadModule, match=r"orders: __all__ is .*: it must be a list of names"):
        names("orders")


def test_a_module_that_is_changed_twice_within_a_second_is_run_as_it_is_now(
    project: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    second = int(time.time())
    for channel in ("billing", "mailing"):  # of the same length
        project(shop=ORDERS + f"CHANNEL = {channel!r}\n")
        os.utime(tmp_path / "shop.py", (second, second))
        import_handlers(["shop"])
        assert sys.modules.pop("shop").CHANNEL == channel


def test_bytecode_of_what_was_changed_long_ago_is_kept(
    project: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    project(shop=ORDERS)
    os.utime(tmp_path / "shop.py", (1e9, 1e9))
    names("shop")
    assert list(tmp_path.glob("__pycache__/shop.*.pyc"))
