"""The rule for topic and channel names, NSQ's own, and nothing else.

Source: nsqd internal/protocol/names.go: ``^[.a-zA-Z0-9_-]+(#ephemeral)?$``, 1 to 64 characters, the
suffix included.
"""

from __future__ import annotations

import re
from functools import lru_cache

from framework.errors import BadName, shown

MAX_LENGTH = 64
EPHEMERAL = "#ephemeral"
KEPT = rf"[.a-zA-Z0-9_-]{{1,{MAX_LENGTH}}}"
"""The pattern of names of what is kept: without the suffix."""
_NAME = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?")


@lru_cache(1024)  # every publish asks, and few names are in use
def is_valid(name: str) -> bool:
    """Whether nsqd takes ``name`` as a topic or channel."""
    return 1 <= len(name) <= MAX_LENGTH and _NAME.fullmatch(name) is not None


def check(kind: str, name: str) -> str:
    """Return ``name``, or raise BadName; ``kind`` is "topic" or "channel"."""
    if isinstance(name, str) and is_valid(name):
        return name
    raise BadName(
        f"{kind} name {shown(name)} is not valid: use 1 to {MAX_LENGTH} of the characters a-z A-Z 0-9 . _ -, "
        f"with {EPHEMERAL!r} at the end for one that is not kept"
    )
