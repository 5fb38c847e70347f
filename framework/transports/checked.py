"""The bodies of a publish, checked before anything is sent: in the same words for every broker. It sends nothing."""

from __future__ import annotations

from collections.abc import Sequence

from framework.bodies import Bodies, named, which
from framework.errors import BadMessage


def check_bodies(
    topic: str, bodies: Sequence[bytes], largest: int, limit: str, *, number: int = 1, of: int | None = None
) -> None:
    """Raises BadMessage, which names the first that is wrong. ``limit``: whose ``largest`` is, and how it is raised. ``number``,
    ``of``: of the first, and of how many, where these are a part of what was given."""
    if isinstance(bodies, (bytes, str)):
        raise BadMessage(f"topic {topic!r}: publish takes a list of bodies; write [body]")
    if isinstance(bodies, Bodies) and bodies.total <= largest:  # which are bytes, and not empty
        return
    if list(map(type, bodies)).count(bytes) == len(bodies):  # no Python runs for each
        sizes = list(map(len, bodies))
        if all(sizes) and max(sizes, default=0) <= largest:
            return
    for at, body in enumerate(bodies):
        name = f"topic {topic!r}: {which(bodies, at + 1) if of is None else named(number + at, of)}"
        if type(body) is not bytes:
            raise BadMessage(f"{name} is {type(body).__name__}, not bytes; encode it")
        if not body:
            raise BadMessage(f"{name} is empty, which other brokers do not take; give it a body or leave it out")
        if len(body) > largest:
            raise BadMessage(f"{name} has {len(body)} bytes; {limit}: make it smaller")
