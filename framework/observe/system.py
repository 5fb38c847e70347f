"""What the brokers of a worker are called in the data of Sentry and OpenTelemetry: ``messaging.system``, ``server.address``."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit


def system_of(brokers: Sequence[str]) -> str:
    """The one kind of broker that the URLs name; empty where they are of several kinds."""
    kinds = {url.partition("://")[0].partition("+")[0].partition("-")[0] for url in brokers} or {"nsq"}
    return kinds.pop() if len(kinds) == 1 else ""


def server_of(node: str) -> tuple[str, int | None]:
    """Host and port of a ``host:port``; None where it has no port."""
    parts = urlsplit(f"//{node}")
    try:
        return parts.hostname or node, parts.port
    except ValueError:
        return node, None


def only_node(brokers: Sequence[str]) -> str:
    """The ``host:port`` to which all is published; empty where it may be one of several, or one that is looked up."""
    plain = [url for url in brokers if "lookupd" not in url.partition("://")[0]]
    node = urlsplit(plain[0]).netloc.rpartition("@")[2] if len(plain) == len(brokers) == 1 else ""
    return "" if "," in node else node
