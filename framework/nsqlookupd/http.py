"""nsqlookupd's HTTP API: which nsqds have a topic, and administration of the names. Source: nsqlookupd v1.3.0 http.go."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from framework.names import is_valid
from framework.nsqd import web
from framework.nsqd.cross_site import CrossSite
from framework.nsqd.daemon import Log
from framework.nsqd.options import VERSION
from framework.nsqd.status import Status
from framework.nsqd.underway import Memory
from framework.nsqd.web import Answer, Api, Request, Routes
from framework.nsqlookupd.options import Options
from framework.nsqlookupd.registry import ANY, CHANNEL, CLIENT, TOPIC, Node, Producer, Registration, Registry

_NEVER = -6795364578871345152
"""Go's zero time in nanoseconds since 1970, which is what nsqlookupd's /debug says."""


class LookupdApi(Api):
    """The WSGI application over one registry."""

    def __init__(self, registry: Registry, options: Options, log: Log, memory: Memory) -> None:
        self._registry = registry
        self._options = options
        self._log = log
        routes: Routes = {
            "/ping": {"GET": lambda request: web.plain(200, "OK")},
            "/info": {"GET": lambda request: {"version": VERSION}},
            "/debug": {"GET": self._debug},
            "/lookup": {"GET": self._lookup},
            "/topics": {"GET": lambda request: {"topics": self._topics()}},
            "/channels": {"GET": lambda request: {"channels": self._channels(request.require("topic"))}},
            "/nodes": {"GET": self._nodes},
            "/topic/create": {"POST": self._create_topic},
            "/topic/delete": {"POST": self._delete_topic},
            "/topic/tombstone": {"POST": self._tombstone},
            "/channel/create": {"POST": self._create_channel},
            "/channel/delete": {"POST": self._delete_channel},
        }
        super().__init__(routes, CrossSite(options.http_allow_hosts, options.broadcast_address), memory)

    # --- questions -------------------------------------------------------------------------------------------------

    def _topics(self) -> list[str]:
        return [one.key for one in self._registry.find(TOPIC, ANY)]

    def _channels(self, topic: str) -> list[str]:
        return [one.subkey for one in self._registry.find(CHANNEL, topic, ANY)]

    def _lookup(self, request: Request) -> Answer:
        topic = request.require("topic")
        if not self._registry.find(TOPIC, topic):
            raise Status(404, "TOPIC_NOT_FOUND")
        producers = self._active(self._registry.producers(TOPIC, topic), self._options.tombstone_lifetime)
        peers = [asdict(one.node.peer) for one in producers]
        return {"channels": self._channels(topic), "producers": peers}

    def _active(self, producers: Iterable[Producer], lifetime: float) -> list[Producer]:
        now, patience = time.time(), self._options.inactive_producer_timeout
        return [one for one in producers if now - one.node.seen <= patience and not one.tombstoned(now, lifetime)]

    def _nodes(self, request: Request) -> Answer:
        return {"producers": [self._node(one.node) for one in self._active(self._registry.producers(CLIENT), 0)]}

    def _node(self, node: Node) -> dict[str, Any]:
        now, lifetime = time.time(), self._options.tombstone_lifetime
        held = {one.key: producer for one, producer in node.registrations.items() if one.category == TOPIC}
        return {
            **asdict(node.peer),
            "tombstones": [producer.tombstoned(now, lifetime) for producer in held.values()],
            "topics": list(held),
        }

    def _debug(self, request: Request) -> Answer:
        return {
            ":".join(registration): [_detail(one) for one in producers]
            for registration, producers in self._registry.items()
            if producers
        }

    # --- administration --------------------------------------------------------------------------------------------

    def _create_topic(self, request: Request) -> Answer:
        topic = request.require("topic")
        if not is_valid(topic):
            raise Status(400, "INVALID_ARG_TOPIC")
        self._add(Registration(TOPIC, topic))
        return None

    def _delete_topic(self, request: Request) -> Answer:
        topic = request.require("topic")
        for registration in self._registry.find(CHANNEL, topic, ANY) + self._registry.find(TOPIC, topic):
            self._remove(registration)
        return None

    def _create_channel(self, request: Request) -> Answer:
        topic, channel = web.names(request)
        self._add(Registration(CHANNEL, topic, channel))
        self._add(Registration(TOPIC, topic))
        return None

    def _delete_channel(self, request: Request) -> Answer:
        topic, channel = web.names(request)
        found = self._registry.find(CHANNEL, topic, channel)
        if not found:
            raise Status(404, "CHANNEL_NOT_FOUND")
        for registration in found:
            self._remove(registration)
        return None

    def _tombstone(self, request: Request) -> Answer:
        topic, node = request.require("topic"), request.require("node")
        self._log("INFO", f"DB: setting tombstone for producer@{node} of topic({topic})")
        for one in self._registry.producers(TOPIC, topic):
            if f"{one.node.peer.broadcast_address}:{one.node.peer.http_port}" == node:
                one.tombstoned_at = time.time()
        return None

    def _add(self, registration: Registration) -> None:
        self._log("INFO", f"DB: adding {_words(registration)}")
        self._registry.add(registration)

    def _remove(self, registration: Registration) -> None:
        self._log("INFO", f"DB: removing {_words(registration)}")
        self._registry.remove(registration)


def _words(registration: Registration) -> str:
    topic = f"topic({registration.key})"
    return f"channel({registration.subkey}) of {topic}" if registration.category == CHANNEL else topic


def _detail(producer: Producer) -> dict[str, Any]:
    peer, tombstoned_at = producer.node.peer, producer.tombstoned_at
    return {
        "broadcast_address": peer.broadcast_address,
        "hostname": peer.hostname,
        "http_port": peer.http_port,
        "id": producer.node.id,
        "last_update": int(producer.node.seen * 1e9),
        "tcp_port": peer.tcp_port,
        "tombstoned": tombstoned_at is not None,
        "tombstoned_at": _NEVER if tombstoned_at is None else int(tombstoned_at * 1e9),
        "version": peer.version,
    }
