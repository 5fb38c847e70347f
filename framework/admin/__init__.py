"""What a worker shows of itself over HTTP while it runs: health and metrics. Imported only where ``--admin`` is given."""

from __future__ import annotations

from framework.admin.address import Listener, listen
from framework.admin.pages import Pages
from framework.admin.server import Server

__all__ = ["Listener", "Pages", "Server", "listen"]
