"""The exit codes of ``workers``, and what each means. ``python -m framework.cli.exit_codes`` prints docs/exit-codes.md."""

from __future__ import annotations

import sys
from enum import IntEnum

from framework.markdown import item


class Exit(IntEnum):
    """Every code that a verb of ``workers`` returns; scripts may rely on them."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made

    CLEAN = 0, "Done, or stopped cleanly by SIGTERM, SIGINT or SIGHUP: nothing is lost."
    UNEXPECTED = 1, "Something that should not happen; the traceback says where. Or an output that cannot be written."
    WRONG_USE = 2, "A flag, name, setting, module or input file cannot be used; nothing was started."
    UNREACHABLE = (
        3,
        "No broker answered within --connect-deadline, one rejects this client (TLS, AUTH), or it went away while publishing. "
        "ctl, top: no worker answers.",
    )
    INCOMPLETE = (
        4,
        "Part of it was left out, the rest is done. publish: lines too large for the broker, or that could not be read; "
        "dead: letters that cannot be replayed, are in other hands, or on nodes that are down; stats: topics that do not exist.",
    )
    ABOVE = 5, "stats: a channel has more messages than --fail-above."
    HUNG_UP = 129, "A second SIGHUP: what was running was given back to the broker at once. publish: the first one."
    INTERRUPTED = 130, "A second SIGINT: what was running was given back to the broker at once. publish: the first one."
    TERMINATED = 143, "A second SIGTERM: what was running was given back to the broker at once. publish: the first one."


def as_text() -> str:
    """For --help."""
    return "\n".join(f"  {code:>3}  {code.meaning}" for code in Exit)


def as_markdown() -> str:
    """docs/exit-codes.md."""
    items = "\n".join(item(f"**{code.value}**: {code.meaning}") for code in Exit)
    return f"""# Exit codes of `workers`

*For people who start `workers` from scripts and supervisors.*

This page is made from `framework/cli/exit_codes.py` by `python -m framework.cli.exit_codes`.

{items}

A signal in the first hundredths of a second, while Python itself starts, ends the process before any line of `workers`
has run. A supervisor is told the signal then and no code (-15 in Python's `subprocess`), and a shell shows 129, 130 or
143. Nothing had been started.
"""


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
