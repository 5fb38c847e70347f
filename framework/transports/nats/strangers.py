"""Whether the servers that a URL names are of one cluster: only then a worker that goes to another finds its streams there."""

from __future__ import annotations

from collections.abc import Sequence

import gevent

from framework.errors import FrameworkError
from framework.transports.nats.dial import Way, dial
from framework.transports.nats.session import Session
from framework.transports.nats.streams import Api

TIMEOUT = 2.0
"""Seconds that a server may take: one that is down is no stranger."""
_PULSE = 30.0


def strangers(session: Session, servers: Sequence[str], way: Way) -> list[str]:
    """A sentence for each of ``servers`` that is of another cluster than the one of ``session``. They are asked all at once."""
    mine = _streams(session)
    asked = [gevent.spawn(_stranger, session, mine, server, way) for server in servers if server != session.server]
    gevent.joinall(asked)
    return [words for one in asked if (words := one.get())]


def _stranger(session: Session, mine: frozenset[object], server: str, way: Way) -> str:
    try:
        with dial(server, way, TIMEOUT) as line:
            other = Session(line, _PULSE)
    except FrameworkError:
        return ""
    try:
        theirs = _streams(other)
        if other.info.server_id == session.info.server_id or (mine == theirs and (mine or _is_named_alike(session, other))):
            return ""
        return (
            f"{server} ({_cluster(other)}) and {session.server} ({_cluster(session)}) keep different streams: "
            f"give each cluster a broker URL of its own"
        )
    except FrameworkError:
        return ""
    finally:
        other.close()


def _streams(session: Session) -> frozenset[object]:
    """Of the cluster: when each was made tells it from one of its name. Raises FrameworkError."""
    return frozenset((one.config.name, one.created) for one in Api(session, TIMEOUT).streams())


def _is_named_alike(session: Session, other: Session) -> bool:
    return bool(other.info.cluster) and other.info.cluster == session.info.cluster


def _cluster(session: Session) -> str:
    return f"cluster {session.info.cluster}" if session.info.cluster else "no cluster"
