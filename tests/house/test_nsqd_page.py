"""docs/nsqd.md is held to the code: its tables of flags, and the figures that it gives."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from framework.nsqd import broker, drain, options
from framework.nsqd.store import log, store
from framework.nsqlookupd import options as lookupd_options
from framework.settings import Settings
from framework.testing.servers import ROOT, free_port
from framework.testing.workers import call

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


def test_honcho_ends_all_when_one_process_ends_as_the_page_says(tmp_path: Path) -> None:
    assert "restarts nothing, and when one process ends it ends all" in PAGE
    (tmp_path / "Procfile").write_text("short: true\nlong: exec sleep 60\n")
    honcho = Path(sys.executable).parent / "honcho"
    done = subprocess.run([honcho, "start"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert "sending SIGTERM to long.1" in done.stdout
    assert done.stdout.count("short.1 started") == 1


def test_its_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("there is no systemd-analyze to read the unit")
    (unit,) = re.findall(r"```ini\n(.*?)```", PAGE, re.S)
    unit = unit.replace("/srv/shop/.venv/bin", str(Path(sys.executable).parent)).replace("/srv/shop", str(tmp_path))
    file = tmp_path / "shop-workers.service"
    file.write_text(unit)
    done = subprocess.run([verify, "verify", file], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "shop-workers" in line]) == (0, []), done.stderr
    stop = re.search(r"TimeoutStopSec=(\d+)", unit)
    assert stop is not None
    assert int(stop[1]) > Settings().drain


def test_the_command_of_its_unit_is_one_that_workers_takes(tmp_path: Path) -> None:
    command = re.search(r"ExecStart=\S+/workers run (.*)", PAGE)
    assert command is not None
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "handlers.py").write_text("from framework import handler\n@handler('a', 'b')\ndef f(m: bytes): ...\n")
    arguments = command[1].replace("4150", str(free_port())).replace("never", "0").split()
    done = call("check", *arguments, cwd=tmp_path)
    assert (done.returncode, "ok    handler  a/b" in done.stdout) == (3, True), done.stdout  # nobody answers there
