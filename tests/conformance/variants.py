"""All broken variants of the example of a transport of one's own."""

from __future__ import annotations

from tests.conformance import delivery_variants, settling_variants  # noqa: F401 - each notes its own
from tests.conformance.variant import VARIANTS, Variant

__all__ = ["VARIANTS", "Variant"]
