"""Consuming and publishing, one after the other: ``python -m benchmarks``. Every other benchmark has a command of its own."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path

from benchmarks import consume, publish


def _others() -> str:
    """The commands of all benchmarks, each with the first line of what it says of itself."""
    found = {file.stem: file.read_text() for file in sorted(Path(__file__).parent.glob("*.py")) if file.stem != "__main__"}
    said = {name: ast.get_docstring(ast.parse(text)) or "" for name, text in found.items() if "argparse" in text}
    return "\n".join(f"  python -m benchmarks.{name:<12} {text.partition(chr(10))[0]}" for name, text in said.items())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, epilog=f"all of them, with options (--help):\n{_others()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.parse_args()
    consume.main([])
    publish.main([])
