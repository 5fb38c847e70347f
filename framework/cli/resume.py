"""``workers resume``: ends a pause of the broker's; see ``pause``."""

from __future__ import annotations

from framework.cli.pause import resume as command

__all__ = ["command"]
