"""``workers nsqlookupd``: the embedded nsqlookupd, with nsqlookupd's own flags, which are not click's to read."""

from __future__ import annotations

import click

from framework.nsqlookupd.server import main


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, add_help_option=False)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def command(flags: tuple[str, ...]) -> int:
    """Run the embedded nsqlookupd until SIGTERM or SIGINT. Its FLAGS are nsqlookupd's: see `workers nsqlookupd --help`."""
    return main(flags)
