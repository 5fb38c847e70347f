"""``workers run``: import modules, and run their handlers until told to stop."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import click
import gevent

from framework.app import App
from framework.cli import ending, options
from framework.cli.exit_codes import as_text
from framework.cli.patching import imported_too_early, is_patched
from framework.cli.signals import stopping
from framework.errors import BadSetting, WrongUse
from framework.master import refused
from framework.master.master import Master
from framework.master.state import About, condition
from framework.master.to_master import ToMaster
from framework.modules import import_handlers, words_of_others
from framework.observe import logfile
from framework.observe import logging as lines
from framework.settings import TABLE, Settings
from framework.systemd import Herald, Notifier

log = logging.getLogger(__name__)


@click.command(epilog=f"Without a flag:\n\n{options.without_flag()}\n\n\b\nExit codes:\n{as_text()}")
@click.argument("modules", nargs=-1, required=True, metavar="MODULE...")
@options.settings(again=True)
def command(modules: tuple[str, ...], settings: Settings, load: Callable[[], Settings]) -> int:
    """Run the handlers that the modules MODULE... declare, until SIGTERM or SIGINT.

    Only their own: a module that MODULE imports has to be named too, for its handlers to run. A package stands for
    itself and for those of its submodules that it imports; a function of another module that is listed in MODULE's
    __all__ is MODULE's as well.

    The first signal lets what runs finish, for as long as --drain; a second one gives everything back to the
    broker at once. Flags override the environment, which overrides --config FILE.

    With --processes a master keeps so many at work; SIGHUP then has it put others with the newest code and settings in
    their place.
    """
    if not is_patched():
        raise WrongUse("`run` must be the first argument: start it as `workers run MODULE...`, in a process of its own")
    lines.setup(
        settings.log_level, timed=True, form=settings.log_format, frames=settings.log_frames, file=settings.log_file
    )  # fmt: skip
    to_master, notifier = ToMaster.inherited(About), Notifier.from_environ()
    if to_master is None and settings.processes is not None:
        return _lead(settings, load, notifier)
    gevent.signal_handler(signal.SIGUSR1, logfile.open_again)  # to the end: it would end this process
    for early in imported_too_early():
        log.warning("imported before gevent could patch it, so it may block every handler: %s", early)
    handlers = import_handlers(modules)
    if others := words_of_others(handlers):
        log.info("imported along, and not run: %s", others)
    if to_master is None:
        _check_alone(settings)
        app = App(handlers, settings)
        if notifier is not None:
            Herald(notifier, partial(condition, app, About())).in_a_thread()
    else:
        app = App(handlers, replace(settings, **_THE_MASTERS), superior=to_master)
        to_master.serve(app, shown=settings.admin is not None)
    with stopping(app if to_master is None else to_master, to_the_end=True, hangs_up=to_master is None) as signals:
        try:
            app.run(leave=lambda: ending.at_once(signals.exit_code))
        finally:
            ending.within(app.time_left, signals.exit_code)
    return signals.exit_code


_THE_MASTERS: dict[str, Any] = {"admin": None, "ledger": None}
"""Settings of what there is once for all processes."""


def _lead(settings: Settings, load: Callable[[], Settings], notifier: Notifier | None) -> int:
    """Be the master. Its processes run this verb with the same arguments."""
    refused.at_start(settings)
    master = Master(settings, load, notifier)
    with stopping(master, to_the_end=True, hangs_up=False) as signals:
        code = master.run()
    return signals.exit_code or code


def _check_alone(settings: Settings) -> None:
    for name in ("max_tasks", "max_rss"):
        if getattr(settings, name) is not None:
            raise BadSetting(f"{TABLE[name].flag} has a master replace processes: give --processes as well, 1 or more")
