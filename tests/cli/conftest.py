"""What the tests of ``workers run`` share."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def app(tmp_path: Path) -> Callable[..., Path]:
    """Writes the module ``shop`` and returns its folder."""

    def write(text: str, name: str = "shop") -> Path:
        (tmp_path / f"{name}.py").write_text("from framework import *\n" + textwrap.dedent(text))
        return tmp_path

    return write
