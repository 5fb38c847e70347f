"""Prints docs/reference.md: the public names of ``framework``, from the text of their signatures and docstrings.

python tools/reference.py > docs/reference.md
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "framework"
sys.path.insert(0, str(PACKAGE.parent))

from framework import markdown  # noqa: E402
from framework.handler import OPTIONS  # noqa: E402

HEAD = """\
# Reference of the package `framework`

*For developers who look up a name: what it takes, what it returns, what it raises.*

This page is made from the code by `python tools/reference.py`. Times are in seconds and sizes in bytes. All names are
imported from `framework`, as in `from framework import handler`; those of other modules are written with their module.
"""

CHAPTERS: dict[str, list[tuple[str, list[str]]]] = {
    "Handlers": [("handler.py", ["handler"])],
    "Publishing": [("publisher.py", ["publish", "publish_many", "publish_each", "Publisher"])],
    "What a handler gets": [("message.py", ["Message", "Batch"])],
    "Middleware": [
        ("hooks.py", ["Middleware", "use_middleware"]),
        ("dedupe/dedupe.py", ["Dedupe"]),
        ("dedupe/store.py", ["KeyStore"]),
    ],
    "The spool": [("spool/spool.py", ["Spool"])],
}
OUTCOMES = ["Retry", "Backoff", "Reject", "Skip", "UndecodablePayload", "HandlerTimeout"]


def page() -> str:
    """docs/reference.md."""
    parts = [HEAD]
    for title, files in CHAPTERS.items():
        parts.append(f"## {title}\n")
        for file, names in files:
            parts += [entry(definition(file, name)) for name in names]
        if title == "Handlers":
            parts.append(options())
    parts.append("## Exceptions that a handler raises\n")
    parts += [entry(definition("errors.py", name)) for name in OUTCOMES]
    parts.append(errors())
    return "\n".join(parts)


# -- reading the code


def tree(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text())


def definition(file: str, name: str) -> ast.FunctionDef | ast.ClassDef:
    for node in tree(file).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
    raise LookupError(f"{file} has no {name}")


def public() -> set[str]:
    """``framework.__all__``"""
    for node in tree("__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise LookupError("framework has no __all__")


def fields(body: list[ast.stmt]) -> Iterator[tuple[str, str, str]]:
    """Name, type and docstring of each attribute. One without a type counts only where it has a docstring."""
    for node, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        words = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
        if isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target).removeprefix("self."), ast.unparse(node.annotation), str(words)
        elif isinstance(node, ast.Assign) and words:
            yield ast.unparse(node.targets[0]).removeprefix("self."), "", str(words)


def methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    named = [one for one in node.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")]
    return [one for one in named if "overload" not in {ast.unparse(d) for d in one.decorator_list}]


def is_property(node: ast.FunctionDef) -> bool:
    return "property" in {ast.unparse(decorator) for decorator in node.decorator_list}


# -- writing the page


def entry(node: ast.FunctionDef | ast.ClassDef) -> str:
    """A name with its signature, its docstring and, of a class, its attributes and methods."""
    parts = [f"### `{node.name}`\n", signature(node), prose(ast.get_docstring(node) or "")]
    if isinstance(node, ast.ClassDef):
        parts.append("".join(item(name, kind, words) for name, kind, words in attributes(node)))
        for one in methods(node):
            if not is_property(one):
                parts += [f"#### `{node.name}.{one.name}`\n", signature(one), prose(ast.get_docstring(one) or "")]
    return "\n".join(part for part in parts if part)


def item(name: str, kind: str, words: str) -> str:
    """An attribute in a list."""
    shown = f"`{name}: {kind}`" if kind else f"`{name}`"
    return markdown.item(f"{shown}: {plain(words)}" if words else shown) + "\n"


def attributes(node: ast.ClassDef) -> list[tuple[str, str, str]]:
    found = list(fields(node.body))
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name == "__init__":
            found += fields(one.body)
    properties = [one for one in methods(node) if is_property(one)]
    found = [field for field in found if not field[0].startswith(("_", "self._"))]
    return found + [
        (one.name, ast.unparse(one.returns or ast.Constant(None)), ast.get_docstring(one) or "") for one in properties
    ]


def signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    """As an indented block, a parameter a line where one line is too short."""
    made = initializer(node) if isinstance(node, ast.ClassDef) else node
    if made is None:
        return ""
    shown = arguments(made)
    returns = f" -> {ast.unparse(made.returns)}" if made.returns is not None and isinstance(node, ast.FunctionDef) else ""
    line = f"    {node.name}({', '.join(shown)}){returns}"
    if len(line) <= markdown.WIDTH:
        return f"{line}\n"
    return "\n".join([f"    {node.name}(", *(f"        {one}," for one in shown), f"    ){returns}", ""])


def arguments(node: ast.FunctionDef) -> list[str]:
    """Each parameter as it is written, ``self`` left out."""
    given = node.args
    plain = given.posonlyargs + given.args
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    shown = [parameter(one, default) for one, default in zip(plain, defaults, strict=True) if one.arg != "self"]
    if given.vararg is not None:
        shown.append("*" + parameter(given.vararg, None))
    elif given.kwonlyargs:
        shown.append("*")
    shown += [parameter(one, default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return shown + ([] if given.kwarg is None else ["**" + parameter(given.kwarg, None)])


def parameter(one: ast.arg, default: ast.expr | None) -> str:
    kind = "" if one.annotation is None else f": {ast.unparse(one.annotation)}"
    value = "" if default is None else f" = {ast.unparse(default)}" if kind else f"={ast.unparse(default)}"
    return f"{one.arg}{kind}{value}"


def initializer(node: ast.ClassDef) -> ast.FunctionDef | None:
    return next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)


def plain(docstring: str) -> str:
    """Markdown has one backtick where a docstring has two."""
    return docstring.replace("``", "`")


def prose(docstring: str) -> str:
    """Paragraphs and indented blocks, as Markdown within the width."""
    paragraphs = re.split(r"\n\s*\n", plain(docstring))
    shown = (p if p.startswith(("    ", "- ")) else markdown.filled(p) for p in paragraphs)
    return "\n\n".join(shown) + "\n"


def options() -> str:
    """The options of ``@handler``, their rules and meanings."""
    meanings = {name: words for name, _, words in fields(definition("handler.py", "HandlerSpec").body)}
    rows = (markdown.item(f"`{name}`: {rule}. {plain(meanings[name])}") for name, rule in rules().items())
    return "\n".join(["### The options of `@handler`\n", *rows, ""])


def rules() -> dict[str, str]:
    """Each option of ``@handler`` with what it may be, from the table that checks it."""
    words = {name: str(rule).split(" (")[0].replace("1e+06", "1000000") for name, rule in OPTIONS.items()}
    return {name: f"{words[name]}{default(rule)}" for name, rule in OPTIONS.items()}


def default(rule: object) -> str:
    value = getattr(rule, "default", None)
    return "; none by default" if value in (0, ()) else f"; {value!r} by default"


def errors() -> str:
    """Every other error as a tree: a class below the one that it is a kind of."""
    classes = [node for node in tree("errors.py").body if isinstance(node, ast.ClassDef) and node.name not in OUTCOMES]
    below: dict[str, list[ast.ClassDef]] = {}
    for node in classes:
        below.setdefault(ast.unparse(node.bases[0]), []).append(node)
    names = public()

    def shown(node: ast.ClassDef, depth: int) -> Iterator[str]:
        name = node.name if node.name in names else f"framework.errors.{node.name}"
        also = "".join(f" Also a `{ast.unparse(base)}`." for base in node.bases[1:])
        indent = "  " * depth
        words = f"- `{name}`: {plain(ast.get_docstring(node) or '')}{also}"
        yield textwrap.indent(markdown.filled(words, indent="  ", width=markdown.WIDTH - len(indent)), indent)
        for child in below.get(node.name, []):
            yield from shown(child, depth + 1)

    roots = [line for node in below["Exception"] for line in shown(node, 0)]
    return "\n".join(["## Errors\n", "`except` with a class catches those below it too.\n", *roots, ""])


if __name__ == "__main__":
    sys.stdout.write(page())
