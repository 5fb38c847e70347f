"""docs/reference.md is what the code says, and leaves out no public name."""

from __future__ import annotations

import subprocess
import sys

import framework
from framework.testing.servers import ROOT

PAGE = (ROOT / "docs" / "reference.md").read_text()


def test_the_page_is_the_one_made_from_the_code() -> None:
    made = subprocess.run([sys.executable, "tools/reference.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert made == PAGE, "run: python tools/reference.py > docs/reference.md"


def test_every_public_name_is_on_the_page() -> None:
    names = [*framework.__all__, "Spool"]
    assert [name for name in names if f"### `{name}`" not in PAGE and f"- `{name}`: " not in PAGE] == []
