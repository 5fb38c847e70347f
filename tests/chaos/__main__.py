"""Every fault at length, with a line of counts for each, and then the tests that the suite leaves to this: ``python -m
tests.chaos [--times FACTOR] [SCENARIO...]``. Where scenarios are named, these alone."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tests.chaos.scenarios import ALL
from tests.chaos.trial import Verdict

_WIDTHS = {"": -40, "faults": 6, "sent": 8, "in doubt": 8, "handled": 8, "duplicates": 10, "unexplained": 11, "lost": 5, "s": 6}


def main(arguments: list[str] | None = None) -> int:
    """0 when nothing was lost beyond what the server documents, or what is counted where nobody keeps anything, and every
    duplicate has its fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--times", type=float, default=1.0, metavar="FACTOR", help="how often, times the usual number (1)")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"which ones; all of {', '.join(ALL)}")
    given = parser.parse_args(arguments)
    unknown = set(given.scenarios) - ALL.keys()
    if unknown:
        parser.error(f"there is no scenario {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    logging.getLogger("framework").setLevel(logging.CRITICAL)  # of workers in this process: faults are what they are here for
    print(_row(_WIDTHS), flush=True)
    verdicts = [_run(name, given.times) for name in given.scenarios or [name for name, (_, times, _) in ALL.items() if times]]
    bad = [verdict.name for verdict in verdicts if not verdict.good]
    print(f"chaos: NOT good: {', '.join(bad)}" if bad else "chaos: nothing lost but what is counted, every duplicate explained")
    return 1 if bad else 0 if given.scenarios else _tests_at_length()


_AT_LENGTH = (
    ["-m", "at_length or long_run", "tests"],  # over older servers that behave as the newer ones do there, and the like
    [
        "-m", "not at_length and not long_run",
        "tests/workers/test_kills.py", "tests/workers/test_job.py", "tests/workers/test_procfile.py",
        "tests/nsqd/test_durability.py", "tests/nsqd/test_fuzz.py", "tests/nsqd/test_damage.py",
        "tests/nsqd/test_store_property.py", "tests/admin/test_admin.py",
    ],
)  # fmt: skip
_LENGTHS = {
    "AT_LENGTH": "1", "NSQD_KILLS": "20", "NSQD_LATE_ROUNDS": "20", "NSQD_FUZZ_INPUTS": "200000", "DAMAGE_FLIPS": "200",
    "STORE_EXAMPLES": "200", "SINK_KILLS": "20",
}  # fmt: skip


def _tests_at_length() -> int:
    """What the suite leaves out or does less often; 0 when all passed."""
    pytest = [sys.executable, "-m", "pytest", "-q", "--timeout", "3000"]
    return max(subprocess.run(pytest + which, env=os.environ | _LENGTHS, check=False).returncode for which in _AT_LENGTH)


def _run(name: str, factor: float) -> Verdict:
    scenario, times, _ = ALL[name]
    if sys.stderr.isatty():
        print(f"{name} ...", end="\r", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        verdict = replace(scenario(Path(folder), max(1, round(times * factor))), seconds=time.monotonic() - began)
    print(line(verdict), flush=True)
    return verdict


def line(one: Verdict) -> str:
    """The verdict as a row of the table."""
    known = f"{one.allowed} counted" if one.exactly else f"up to {one.allowed} are nsqd's own"
    lost = f"{one.lost} ({known})" if one.allowed else f"{one.lost}"
    counts = (one.faults, one.sent, one.in_doubt, one.handled, one.duplicates, one.unexplained)
    return _row([one.name, *(f"{count:,}" for count in counts), lost, f"{one.seconds:.1f}"])


def _row(cells: Iterable[str]) -> str:
    return " ".join(
        f"{cell:{'<' if width < 0 else '>'}{abs(width)}}" for cell, width in zip(cells, _WIDTHS.values(), strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
