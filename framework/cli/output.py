"""How a verb that prints ends when nobody reads it any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from framework.cli.exit_codes import Exit


@contextmanager
def output() -> Iterator[None]:
    """Ends a verb quietly when nobody reads its output any more, as in ``workers dead list x | head``."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at exit
        raise click.exceptions.Exit(Exit.CLEAN) from None
