"""``workers nsqd``: the embedded nsqd, with nsqd's own flags, which are not click's to read."""

from __future__ import annotations

import click

from framework.nsqd.server import main


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, add_help_option=False)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def command(flags: tuple[str, ...]) -> int:
    """Run the embedded nsqd until SIGTERM or SIGINT. Its FLAGS are nsqd's: see `workers nsqd --help`."""
    return main(flags)
