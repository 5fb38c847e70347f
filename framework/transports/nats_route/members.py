"""Who is who in a cluster: the ids and names that its members go by."""

from __future__ import annotations

import base64
import secrets

from framework.transports.nats import wire

_NAME = "workers-"


def new_name() -> str:
    """Of a peer like us: another one in each process."""
    return f"{_NAME}{secrets.token_hex(8)}"


def is_peer(info: wire.Info) -> bool:
    """Whether it is no server but a peer like us."""
    return info.server_name.startswith(_NAME)


def new_id() -> str:
    """As servers have them: N and 55 more of base32."""
    return "N" + base64.b32encode(secrets.token_bytes(35)).decode()[:55]


def of_two(one: wire.Info, other: wire.Info) -> bool:
    """Whether they are of two clusters, each of which has a name."""
    return one.cluster != other.cluster and not (one.cluster_dynamic or other.cluster_dynamic)


def same_server(one: wire.Info, other: wire.Info) -> bool:
    """Whether it is one that was started again."""
    return bool(one.server_name) and one.server_name == other.server_name and one.server_id != other.server_id
