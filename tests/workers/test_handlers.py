"""The pipeline's handlers: what they keep, and what they need to be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environ}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_they_are_imported_without_spark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import workers.api_requests.handlers as h; print(*h.__all__)"
    assert python(code) == "archive block growth spam"


def test_importing_them_touches_no_disk(tmp_path: Path) -> None:
    python(
        "import workers.api_requests.handlers", API_REQUESTS_SPOOL=str(tmp_path / "s"), API_REQUESTS_BLOCKLIST=str(tmp_path / "b")
    )
    assert list(tmp_path.iterdir()) == []


def test_a_spool_may_have_as_much_as_the_environment_says(tmp_path: Path) -> None:
    code = """
from framework import BadSetting
try:
    from workers.api_requests.collect import landing
    print([spool._limit._most for spool in (landing._archive, landing._growth, landing._spam)])
except BadSetting as error:
    print(error)
"""
    assert python(code, API_REQUESTS_SPOOL_BYTES="1000000") == "[1000000, 1000000, 1000000]"
    assert python(code, API_REQUESTS_SPOOL_BYTES="") == "[None, None, None]"
    for wrong in ("0", "1e9", "-1", "5 GB"):
        said = f"API_REQUESTS_SPOOL_BYTES={wrong}: a whole number above 0 is needed"
        assert python(code, API_REQUESTS_SPOOL_BYTES=wrong) == said


def test_a_suspect_is_put_on_the_list_that_the_environment_names(tmp_path: Path) -> None:
    code = """
from datetime import UTC, datetime
from workers.api_requests.detect.blocking import Suspect, block
noon = datetime(2024, 5, 12, 12, tzinfo=UTC)
block(Suspect("10.0.0.1", noon, noon, 3, ["because"]))
"""
    python(code, API_REQUESTS_BLOCKLIST=str(tmp_path / "b.sqlite"))
    from workers.api_requests.detect.blocklist import BlockList

    (entry,) = BlockList(tmp_path / "b.sqlite").entries()
    assert (entry.address, entry.requests, entry.reasons) == ("10.0.0.1", 3, ("because",))


def test_one_without_an_address_is_rejected() -> None:
    code = """
from datetime import UTC, datetime
from framework import Reject
from workers.api_requests.detect.blocking import Suspect, block
try:
    block(Suspect("", datetime.now(UTC), datetime.now(UTC), 3, []))
except Reject as error:
    print(error)
"""
    assert python(code) == "a suspect without an address"


FULL_DISK = """
import pytest
from framework import publish
from framework.spool import files
from workers.api_requests import handlers

@pytest.mark.parametrize("channel", ["archive", "growth", "spam"])
def test_one(broker, worker, monkeypatch, tmp_path, channel):
    tries, real = [], files._write_and_sync

    def write(path, rows):
        tries.append(path)
        if len(tries) <= 40:
            raise OSError(28, "No space left on device")
        real(path, rows)

    monkeypatch.setattr(files, "_write_and_sync", write)
    publish("api_requests", "a line")
    ledger = worker.run(getattr(handlers, channel), raise_errors=False)
    assert (ledger.requeued, ledger.finished, ledger.dead) == (40, 1, 0)
"""


def test_a_disk_that_is_full_for_long_gives_no_line_up(tmp_path: Path) -> None:
    (tmp_path / "test_full.py").write_text(FULL_DISK)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "test_full.py"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "API_REQUESTS_SPOOL": str(tmp_path / "spool")},
    )  # fmt: skip
    assert "3 passed" in done.stdout, done.stdout
