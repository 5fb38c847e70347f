"""Which settings a master refuses, at its start and at a reload, before anything is done with them."""

from __future__ import annotations

from framework.errors import BadSetting
from framework.observe import logfile
from framework.resident import rss
from framework.settings import Settings, check_writable


def at_start(settings: Settings) -> None:
    """Raises BadSetting for what could not be done in the end, or at the time."""
    if settings.ledger:
        check_writable(settings.ledger, "--ledger")
    if settings.max_rss is not None and not rss():
        raise BadSetting("--max-rss: this system does not tell how much memory a process takes (/proc): leave it out")


def at_reload(settings: Settings, former: Settings, *, embedded: bool) -> None:
    """Raises BadSetting also for what the master has opened and cannot open elsewhere while it is used. ``embedded``: an nsqd."""
    at_start(settings)
    if embedded != (not settings.brokers) or (embedded and settings.data_path != former.data_path):
        raise BadSetting("the embedded nsqd is where it was at the start: for another broker or --data-path start anew")
    if logfile.path() and not settings.log_file:
        raise BadSetting("the log is in a file, and stderr is gone: for none start anew, or name another --log-file")
    if settings.log_file:
        logfile.check(settings.log_file)
