"""The ``workers`` command. Imports nothing until it is known whether the process is to be patched."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run ``workers`` with the arguments of this process, and exit with one of ``exit_codes``."""
    if sys.argv[1:2] == ["run"]:
        from framework.cli.patching import patch  # noqa: PLC0415

        patch()  # before click, settings and app code: what is imported first would keep what blocks
    from framework.cli import ending, signals  # noqa: PLC0415
    from framework.cli.root import run_command  # noqa: PLC0415
    from framework.observe import stderr  # noqa: PLC0415
    from framework.observe.logging import setup  # noqa: PLC0415
    from framework.process_end import end_process  # noqa: PLC0415

    if sys.argv[1:2] not in (["run"], ["nsqd"], ["nsqlookupd"], ["publish"]):  # which take the signals themselves
        signals.as_before()
    with stderr.unblocked("workers: "):
        setup("warning")  # `run` has a setting for it
        code = run_command(sys.argv[1:])
        signals.at_the_end()
    ending.exit_code(code)
    end_process(code)
