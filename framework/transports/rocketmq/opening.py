"""A stored message as its publisher gave it, and the id by which its deliveries are one. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping

from framework.errors import ProtocolError
from framework.observe import hublog
from framework.transports.rocketmq.wire import properties
from framework.transports.rocketmq.wire.stored import Stored, unpacked

log = hublog.get(__name__)


def body_of(stored: Stored, name: str, node: str) -> bytes | None:
    """None: it cannot be unpacked here, which is logged; another worker can perhaps. ``name``: of its handler."""
    try:
        return unpacked(stored.body, stored.sys_flag)
    except ProtocolError as error:
        log.error("%s: message %s from %s: %s", name, stored.message_id, node, error)
        return None


def id_of(stored: Stored, found: Mapping[str, str]) -> bytes:
    """What stays the same when it comes again: its publisher's id, where there is one. ``found``: its properties."""
    return (found.get(properties.UNIQ_KEY) or stored.message_id).encode()
