"""Which version this is. A constant, as asking for what is installed takes a tenth of the time in which a process starts."""

from __future__ import annotations

VERSION = "0.1.0"
AGENT = f"nsq-workers/{VERSION}"
"""As servers show it."""
