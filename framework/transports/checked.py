"""The bodies of a publish, checked before anything is sent: in the same words for every broker. It sends nothing."""

from __future__ import annotations

from collections.abc import Sequence

from framework.bodies import Bodies
from framework.errors import BadMessage


def check_bodies(topic: str, bodies: Sequence[bytes], largest: int, limit: str) -> None:
    """Raises BadMessage, which names the first that is wrong. ``limit``: whose ``largest`` is, and how it is raised."""
    if isinstance(bodies, (bytes, str)):
        raise BadMessage(f"topic {topic!r}: publish takes a list of bodies; write [body]")
    if isinstance(bodies, Bodies) and bodies.total <= largest:  # which are bytes, and not empty
        return
    if list(map(type, bodies)).count(bytes) == len(bodies):  # no Python runs for each
        sizes = list(map(len, bodies))
        if all(sizes) and max(sizes, default=0) <= largest:
            return
    for number, body in enumerate(bodies, 1):
        which = f"topic {topic!r}: message {number} of {len(bodies)}"
        if type(body) is not bytes:
            raise BadMessage(f"{which} is {type(body).__name__}, not bytes; encode it")
        if not body:
            raise BadMessage(f"{which} is empty, which other brokers do not take; give it a body or leave it out")
        if len(body) > largest:
            raise BadMessage(f"{which} has {len(body)} bytes; {limit}: make it smaller")
