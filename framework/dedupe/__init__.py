"""Middleware that skips messages which were handled before, and where the keys of those are kept."""

from framework.dedupe.dedupe import Dedupe
from framework.dedupe.store import KeyStore

__all__ = ["Dedupe", "KeyStore"]
