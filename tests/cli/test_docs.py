"""``workers docs``: a document that AsyncAPI's own schema takes, and that says what the handlers do."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from framework.testing.servers import ROOT
from framework.testing.workers import call
from tests.conftest import missing

SPECS = "6.11.1"
SHOP = """
    from dataclasses import dataclass
    from datetime import datetime
    from typing import Annotated
    import msgspec

    @dataclass
    class Line:
        sku: str
        count: Annotated[int, msgspec.Meta(ge=1)]

    class Order(msgspec.Struct):
        "What a customer wants."
        id: int
        lines: list[Line]
        place: tuple[float, float] | None = None
        replaces: "Order | None" = None

    @handler("orders", "billing", max_attempts=3)
    def bill(order: Order) -> None:
        '''Write the bill
        of an order.

        Once for each.'''

    @handler("orders", "audit", batch=50)
    def audit(orders: Batch[Order]) -> None: ...

    @handler("logs#ephemeral", "tail")
    def tail(line: str) -> None: ...

    @handler("logs#ephemeral", "raw")
    def raw(message: Message) -> None: ...

    @handler("counts", "sum")
    def count(some: dict[str, int]) -> None: ...
"""


@pytest.fixture(scope="session")
def specification() -> Any:
    """The JSON schema that the specification comes with, from its npm package, fetched once."""
    folder = ROOT / ".cache" / f"asyncapi-{SPECS}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "3.0.0.json").exists():
            if shutil.which("npm") is None:
                missing("AsyncAPI's schema comes from its npm package, and there is no `npm` on the PATH")
            subprocess.run(["npm", "pack", "--silent", f"@asyncapi/specs@{SPECS}"], cwd=folder, check=True, capture_output=True)
            with tarfile.open(folder / f"asyncapi-specs-{SPECS}.tgz") as package:
                found = package.extractfile("package/schemas/3.0.0.json")
                assert found is not None
                (folder / "3.0.0.json").write_bytes(found.read())
    schema = json.loads((folder / "3.0.0.json").read_text())
    return jsonschema.validators.validator_for(schema)(schema)


@pytest.fixture
def shop(app: Callable[..., Path]) -> Path:
    return app(SHOP)


def documented(folder: Path, *arguments: str) -> Any:
    done = call("docs", "shop", *arguments, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout) if "--json" in arguments else yaml.safe_load(done.stdout)


def pointed_at(document: Any, pointer: str) -> Any:
    from urllib.parse import unquote

    for part in pointer.removeprefix("#/").split("/"):
        document = document[unquote(part).replace("~1", "/").replace("~0", "~")]
    return document


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for one in value.values() for found in references(one)]
    return [found for one in value for found in references(one)] if isinstance(value, list) else []


@pytest.mark.parametrize("notation", [(), ("--json",), ("--asyncapi",)], ids=["yaml", "json", "by name"])
def test_the_specifications_schema_takes_it_and_each_reference_leads_somewhere(
    shop: Path, specification: Any, notation: tuple[str, ...]
) -> None:
    made = documented(shop, *notation, "--broker", "nsq://me:hidden@10.0.0.1:4150,10.0.0.2:4150")
    assert [error.message for error in specification.iter_errors(made)] == []
    assert len(references(made)) > 10
    for pointer in references(made):
        assert pointed_at(made, pointer)
    made["operations"]["orders/billing"]["action"] = "eat"
    assert list(specification.iter_errors(made)), "it refuses what is wrong"


def test_it_says_what_the_handlers_take_and_do(shop: Path) -> None:
    made = documented(shop, "--title", "Shop", "--app-version", "1.2", "--broker", "nsq://me:hidden@10.0.0.1:4150")
    assert made["info"] == {"title": "Shop", "version": "1.2"}
    assert made["servers"] == {"broker-1": {"host": "10.0.0.1:4150", "protocol": "nsq"}}
    assert set(made["channels"]) == {"orders", "logs#ephemeral", "counts"}
    bill = made["operations"]["orders/billing"]
    assert (bill["title"], bill["summary"], bill["description"]) == ("bill", "Write the bill of an order.", "Once for each.")
    assert bill["x-nsq-workers"] == {"channel": "billing", "concurrency": 10, "timeout": 60.0, "max_attempts": 3}
    assert made["operations"]["orders/audit"]["x-nsq-workers"]["batch"] == 50
    order = made["components"]["schemas"]["Order"]
    assert (order["description"], order["required"]) == ("What a customer wants.", ["id", "lines"])
    assert made["components"]["schemas"]["Line"]["properties"]["count"]["minimum"] == 1
    content = {name: one["contentType"] for name, one in made["channels"]["logs#ephemeral"]["messages"].items()}
    assert content == {"str": "text/plain; charset=utf-8", "bytes": "application/octet-stream"}


def test_a_module_without_handlers_is_exit_2_and_one_sentence(app: Callable[..., Path]) -> None:
    done = call("docs", "shop", cwd=app("x = 1"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "shop" in done.stderr
