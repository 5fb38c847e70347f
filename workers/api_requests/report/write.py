"""What a demo leaves behind for people and programs: two pictures, a page and summary.json."""

from __future__ import annotations

import json
from pathlib import Path

from workers.api_requests.report import pictures as drawn
from workers.api_requests.report.figures import Figures
from workers.api_requests.report.page import page


def pictures(figures: Figures, output: Path) -> None:
    """growth.png and spam.png."""
    drawn.growth(figures, output / "growth.png")
    drawn.spam(figures, output / "spam.png")


def page_and_summary(figures: Figures, output: Path) -> None:
    """report.html and summary.json."""
    (output / "report.html").write_text(page(figures), encoding="utf-8", errors="backslashreplace")
    (output / "summary.json").write_text(json.dumps(figures.summary(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
