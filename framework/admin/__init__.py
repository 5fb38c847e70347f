"""What a worker shows of itself over HTTP while it runs, and has done. Imported only where ``--admin`` is given.

A ``Source`` is what is shown: ``Here`` of this process, or what merges the snapshots of several.
"""

from __future__ import annotations

from framework.admin.access import Access
from framework.admin.address import Listener, listen
from framework.admin.here import Here
from framework.admin.pages import Pages
from framework.admin.server import Server
from framework.admin.serving import serving
from framework.admin.snapshot import Snapshot, Source, left_over, merged

__all__ = ["Access", "Here", "Listener", "Pages", "Server", "Snapshot", "Source", "left_over", "listen", "merged", "serving"]
