"""Opens the admin endpoint that settings ask for, over any source: one process or a master's children."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from framework.admin.access import access_for
from framework.admin.address import listen
from framework.admin.pages import Pages
from framework.admin.server import Server
from framework.admin.snapshot import Source
from framework.settings import Settings
from framework.transports.contract import Transport

log = logging.getLogger(__name__)


@contextmanager
def serving(settings: Settings, source: Source, opened: Callable[[], Sequence[Transport]]) -> Iterator[None]:
    """Serve ``source`` at ``settings.admin`` while the block runs; nothing where it is not set. ``opened()`` opens the brokers.

    Raises BadSetting, in one sentence, for what cannot be listened at, and for what others can reach without a token.
    """
    if not settings.admin:
        yield
        return
    listener = listen(settings.admin)
    try:
        access = access_for(
            settings.admin, loopback=listener.loopback, token=settings.admin_token, read_only=settings.admin_read_only
        )
    except BaseException:
        listener.close()
        raise
    server = Server(listener, Pages(source, opened, access).answer)
    log.info("admin endpoint at %s", listener.address)
    try:
        yield
    finally:
        server.close()
