"""What a cluster's permissions and our way of listening mean for a handler, in sentences for ``workers check``. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator

from framework.transports.nats.wire import Info, Permissions
from framework.transports.nats_route.interest import matches
from framework.transports.nats_route.urls import Cluster, Options


def obstacles(info: Info, topic: str) -> Iterator[str]:
    """Why no message of ``topic`` would come: a server refuses a subscription without a word."""
    if not _lets(info.exports, topic):
        yield (
            f"the cluster's permissions export {_shown(info.exports)}, so no message of {topic} would come: "
            "add it to cluster { permissions { export } }"
        )


def unheard(info: Info) -> str:
    """Why no answer of JetStream would come; empty if one would."""
    if _lets(info.exports, "_INBOX.workers.1"):
        return ""
    return (
        f"the cluster's permissions export {_shown(info.exports)}, so no answer of JetStream would come: "
        "add _INBOX.> to cluster { permissions { export } }"
    )


def stream_obstacles(info: Info, topic: str, stream: str, consumer: str) -> Iterator[str]:
    """Why messages of a stream would not come, or not be settled: what is refused is refused without a word."""
    pulled, settled = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", f"$JS.ACK.{stream}.{consumer}.1.1.1.1.1"
    for subject, needed in ((topic, topic), (pulled, pulled), (settled, f"$JS.ACK.{stream}.{consumer}.>")):
        if not _lets(info.imports, subject):
            yield (
                f"the cluster's permissions import {_shown(info.imports)}, so JetStream would not hear of {needed}: "
                "add it to cluster { permissions { import } }"
            )


def notes(info: Info, options: Options, cluster: Cluster, tls: bool) -> Iterator[str]:
    """What else somebody who runs a handler should know."""
    yield "a route port means full trust: whoever may use it reads and writes every subject of every account"
    for what, permissions in (("import", info.imports), ("export", info.exports)):
        if permissions is not None:
            yield f"its permissions {what} {_shown(permissions)}; anything else is refused without a word"
    if not (options.listen or cluster.local):
        yield (
            "other servers and workers cannot dial us: name every server in the broker URL, or give listen= (and advertise=) "
            "with an address that they reach"
        )
    if options.listen and not (cluster.login.user or tls):
        yield f"listen={options.listen} accepts whoever reaches it: give user:password@ and TLS"


def _lets(permissions: Permissions | None, subject: str) -> bool:
    if permissions is None:
        return True
    allowed = permissions.allow is None or _any(permissions.allow, subject)
    return allowed and not _any(permissions.deny or [], subject)


def _any(patterns: list[str], subject: str) -> bool:
    return any(matches(pattern.encode(), subject.encode()) for pattern in patterns)


def _shown(permissions: Permissions | None) -> str:
    """``only a, b``, or ``all but c``."""
    assert permissions is not None
    allow = "all" if permissions.allow is None else f"only {', '.join(permissions.allow) or 'nothing'}"
    return f"{allow} but {', '.join(permissions.deny)}" if permissions.deny else allow
