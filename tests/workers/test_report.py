"""The report: complete, harmless whatever the log holds, and without complaint from a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import UTC, date, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from workers.api_requests.detect.spam.verdict import Suspect
from workers.api_requests.report.figures import Figures, Period, Rejected
from workers.api_requests.report.scale import joined, ticks

NOON = datetime(2024, 5, 12, 12, tzinfo=UTC)
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>&$\\frac{'


def some(**other: object) -> Figures:
    """Three days with everything hostile that a log can hold."""
    hours = [Period(NOON + timedelta(hours=n), 10 * n, n, 1) for n in range(60)]
    days = [Period(date(2024, 5, 12 + n), 100 + n, 20, 5, 0.5 if n else None) for n in range(3)]
    reasons = [f"Probed for secret files: {HOSTILE}, once; none was served."]
    figures = Figures(
        source=f"/logs/{HOSTILE}", input_lines=400, published=390, refused={"empty": 10}, archived=303, rejected=87,
        addresses=60,
        by_hour=hours, by_day=days, by_status={"200": 300, "404": 3}, rejects=[Rejected("bad time", 87, [HOSTILE, "x\ny"])],
        suspects=[Suspect(HOSTILE, NOON, NOON + timedelta(hours=3), 30, 4, reasons)], activity=[(NOON, HOSTILE, 30)],
        ledger={"api_requests/archive": {"received": 390, "finished": 390}}, phases={"broker": (0, 1), "Spark": (1, 9.5)},
        seconds=9.9, notes=[HOSTILE],
    )  # fmt: skip
    for name, value in other.items():
        setattr(figures, name, value)
    return figures


def nothing() -> Figures:
    return Figures("empty.log", 3, 0, {"empty": 3}, 0, 0, 0, [], [], {}, [], [], [])


class Tags(HTMLParser):
    """The tags of a page, whether they nest, and its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("figures", [some(), nothing(), some(suspects=[], activity=[]), some(by_day=some().by_day[:1])])
def test_the_page_is_well_formed_and_nothing_of_the_log_becomes_markup(figures: Figures) -> None:
    from workers.api_requests.report.page import page

    tags = Tags(page(figures))
    assert tags.open == []
    assert not tags.seen & {"script", "img", "iframe", "object", "form", "a"}
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    assert [value for name, value in tags.attributes if name in ("src", "href")] == ["data:,"]


@pytest.mark.parametrize("character", ["\0", "\x1b", "\u202e", "\u2066", "\u200b", "\x85"])
def test_what_nobody_should_be_shown_is_shown_as_an_escape(character: str) -> None:
    """A NUL is no text of HTML, and a turn of the writing direction lets an address look like another one."""
    from workers.api_requests.report.page import page

    address = f"10.0.0.{character}1"
    suspect = Suspect(address, NOON, NOON, 30, 4, [f"Asked for /{character}"])
    text = page(some(suspects=[suspect], activity=[(NOON, address, 30)], source=f"log{character}", notes=[f"a note{character}"]))
    assert character not in text
    assert text.count(escape := character.encode("unicode_escape").decode()) >= 5, escape


def test_the_page_says_it_all() -> None:
    from workers.api_requests.report.page import page

    text = re.sub(r"<[^>]*>", " ", page(some()))
    for words in (
        "400", "390", "303", "87", "12 to 14 May 2024", "+50%", "Probed for secret files", "bad time", "api_requests/archive",
        "9.9 seconds", "303 archived + 87 rejected = 390 published", "prefers-color-scheme: dark",
    ):  # fmt: skip
        assert words in text


@pytest.mark.parametrize("figures", [some(), nothing(), some(suspects=[], activity=[])])
def test_everything_is_written(tmp_path: Path, figures: Figures) -> None:
    from workers.api_requests.report import write

    write.pictures(figures, tmp_path)
    write.page_and_summary(figures, tmp_path)
    for name in ("growth.png", "spam.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "summary.json").read_text())["archived"] == figures.archived


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("address", ["nul\0", "\x1b[2J", "\u202eabc", "żółw🐢", "\ufffd", "$\\frac{"])
def test_an_address_of_any_characters_is_drawn_without_a_word(tmp_path: Path, address: str) -> None:
    from workers.api_requests.report import pictures

    pictures.spam(some(suspects=[Suspect(address, NOON, NOON, 30, 4, [])], activity=[(NOON, address, 30)]), tmp_path / "spam.png")
    assert (tmp_path / "spam.png").stat().st_size > 1000


def test_the_summary_has_the_promised_keys() -> None:
    summary = some().summary()
    promised = {
        "input_lines",
        "published",
        "archived",
        "rejected",
        "addresses",
        "by_day",
        "by_status",
        "spam",
        "ledger",
        "seconds",
    }
    assert promised <= summary.keys()
    assert summary["by_day"]["2024-05-13"] == {"requests": 101, "addresses": 20, "new_addresses": 5}
    assert summary["spam"][0].items() >= {"address": HOSTILE, "first_seen": "2024-05-12T12:00:00Z", "requests": 30}.items()


def test_counts_that_contradict_each_other_are_told() -> None:
    assert some(by_day=[]).contradictions() == ["growth counted 0 requests, 303 are archived"]
    assert some().contradictions() == []
    assert some(rejected=86).contradictions() == ["303 archived + 86 rejected are not 390 published"]


@pytest.mark.parametrize(
    ("hours", "name", "bars"), [(1, "hour", 1), (300, "hour", 300), (24 * 40, "3 hours", 320), (24 * 365 * 9, "30 days", 110)]
)
def test_any_span_fits_the_chart(hours: int, name: str, bars: int) -> None:
    first = datetime(2024, 5, 12, tzinfo=UTC)
    found, _, counts = joined([Period(first + timedelta(hours=n), 2, 1, 0) for n in range(hours)])
    assert (found, len(counts)) == (name, bars)
    assert sum(count for _, count in counts) == 2 * hours


@pytest.mark.parametrize("most", [0, 1, 2, 7, 99, 101, 758, 12_345, 10**9])
def test_ticks_are_round_and_reach_the_top(most: int) -> None:
    marks = ticks(most)
    assert marks[0] == 0
    assert marks[-1] >= most
    assert 2 <= len(marks) <= 7


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        import os

        (pytest.fail if os.environ.get("CI") else pytest.skip)("the report is opened in Chromium, and there is none on the PATH")
    return found


@pytest.mark.slow
def test_a_browser_shows_the_page_without_complaint_and_what_a_log_holds_as_text(tmp_path: Path) -> None:
    from workers.api_requests.report import write

    agent = "<script>document.title = 'taken over'</script>"
    cut = f'10.0.0.1 - - [12/May/2024:06:07:08 +0000] "GET / HTTP/1.1" 200 1 "-" "{agent}'
    write.page_and_summary(some(rejects=[Rejected("truncated", 1, [cut])]), tmp_path)
    command = [
        chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--v=0",
        f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={tmp_path / 'page.png'}", "--window-size=900,1400",
        "--dump-dom", f"file://{tmp_path / 'report.html'}",
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "CONSOLE" not in shown.stderr
    assert "Rejected lines" in shown.stdout
    tags = Tags(shown.stdout)
    assert {agent in text for text in tags.texts if "document.title" in text} == {True}
    assert "script" not in tags.seen
    assert "<title>API requests, 12 to 14 May 2024</title>" in shown.stdout
    assert "&lt;script&gt;alert" in shown.stdout
    assert len((tmp_path / "page.png").read_bytes()) > 20_000
