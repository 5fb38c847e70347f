"""docs/nsqd.md is held to the code: its tables of flags, and the figures that it gives."""

from __future__ import annotations

from framework.nsqd import broker, drain, options
from framework.nsqd.store import log, store
from framework.nsqlookupd import options as lookupd_options
from framework.testing.servers import ROOT

PAGE = (ROOT / "docs" / "nsqd.md").read_text()


def test_the_page_has_the_tables_of_flags() -> None:
    assert options.as_markdown() in PAGE, "run: python -m framework.nsqd.options"
    assert lookupd_options.as_markdown() in PAGE, "run: python -m framework.nsqlookupd.options"


def test_every_flag_is_on_the_page() -> None:
    assert all(f"`--{name}`" in PAGE for name in options.FLAGS | lookupd_options.FLAGS)


def test_the_figures_are_those_of_the_code() -> None:
    assert f"saved every {broker.SAVE_SECONDS * 1000:g} ms" in PAGE
    assert f"in groups of at most {drain.TOGETHER}" in PAGE
    assert f"({log.SEGMENT_BYTES >> 20} MiB)" in PAGE
    assert store.RESERVE_BYTES == 64 << 20
    assert "while 64 MB are still free" in PAGE
    assert f"are nsqd {options.VERSION} and" in PAGE
