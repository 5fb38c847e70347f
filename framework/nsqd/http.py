"""nsqd's HTTP API: publishing, administration, statistics; its status codes and its words. Source: nsqd v1.3.0 http.go."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any

from framework.names import is_valid
from framework.nsqd import config, metrics, payloads, stats, web
from framework.nsqd.broker import Broker
from framework.nsqd.channel import Channel
from framework.nsqd.cross_site import CrossSite
from framework.nsqd.journal import NotStored
from framework.nsqd.lookups import Lookups
from framework.nsqd.options import TLS_REQUIRED
from framework.nsqd.payloads import Payload
from framework.nsqd.protocol import Client
from framework.nsqd.slices import Slices
from framework.nsqd.status import Status
from framework.nsqd.store import Entry
from framework.nsqd.topic import Topic
from framework.nsqd.underway import Memory
from framework.nsqd.web import Answer, Api, Request, Response, Routes

_INT32 = Struct(">i")
_TURN = 1000
"""Messages that are looked at before others are let run."""
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class NsqdApi(Api):
    """The WSGI application over one broker."""

    def __init__(
        self, broker: Broker, clients: Iterable[Client], about: dict[str, Any], memory: Memory, lookups: Lookups
    ) -> None:  # fmt: skip
        """``clients`` are all that are connected; ``about`` is where they find this nsqd; ``memory`` is for bodies."""
        self._broker = broker
        self._lookups = lookups
        self._clients = clients
        routes: Routes = {
            "/ping": {"GET": self._ping},
            "/info": {"GET": lambda request: stats.info(broker, about)},
            "/stats": {"GET": self._stats},
            "/metrics": {"GET": self._metrics},
            "/config/": {"GET": self._config, "PUT": self._configure},
            "/pub": {"POST": self._pub},
            "/mpub": {"POST": self._mpub},
            "/topic/create": {"POST": self._create_topic},
            "/topic/delete": {"POST": self._delete_topic},
            "/topic/empty": {"POST": self._empty_topic},
            "/topic/pause": {"POST": lambda request: self._pause_topic(request, True)},
            "/topic/unpause": {"POST": lambda request: self._pause_topic(request, False)},
            "/channel/create": {"POST": self._create_channel},
            "/channel/delete": {"POST": self._delete_channel},
            "/channel/empty": {"POST": self._empty_channel},
            "/channel/pause": {"POST": lambda request: self._pause_channel(request, True)},
            "/channel/unpause": {"POST": lambda request: self._pause_channel(request, False)},
        }
        super().__init__(routes, CrossSite(broker.options.http_allow_hosts, broker.options.broadcast_address), memory)

    https_port = 0
    """Where HTTPS is listened on, if it is."""

    def respond(self, request: Request) -> Response:
        if self._broker.options.tls_required == TLS_REQUIRED and not request.secure:
            return Response(403, {"message": "TLS_REQUIRED", "https_port": self.https_port})
        try:
            return super().respond(request)
        except NotStored as error:
            raise Status(503, f"NOT_STORED {error}") from error

    # --- statistics ----------------------------------------------------------------------------------------------

    def _ping(self, request: Request) -> Response:
        return web.plain(500 if self._broker.wrong else 200, stats.health(self._broker))

    def _stats(self, request: Request) -> Answer:
        body = stats.stats(
            self._broker, self._clients, request.get("topic") or "", request.get("channel") or "",
            with_clients=_BOOLEANS.get(request.get("include_clients") or "", True),
            memory=_BOOLEANS.get(request.get("include_mem") or "", True),
        )  # fmt: skip
        return body if request.get("format") == "json" else stats.text(self._broker, body)

    def _metrics(self, request: Request) -> Response:
        return Response(200, metrics.text(self._broker, sum(1 for _ in self._clients)), (metrics.CONTENT_TYPE,))

    def _config(self, request: Request) -> Answer:
        return config.get(self._broker.options, request.name)

    def _configure(self, request: Request) -> Answer:
        options = self._broker.options
        config.put(options, request.name, request.body(options.max_msg_size))
        self._lookups.use(options.lookupd_tcp_addresses)
        return self._config(request)

    # --- publishing ------------------------------------------------------------------------------------------------

    def _pub(self, request: Request) -> Answer:
        most = self._broker.options.max_msg_size
        body = b"" if request.length > most else request.body(most)
        if request.length > most or len(body) > most:
            raise Status(413, "MSG_TOO_BIG")
        if not body:
            raise Status(400, "MSG_EMPTY")
        topic = self._topic_made(request)
        delay = self._delay(request.get("defer"))
        due = int(self._broker.clock.now()) + delay if delay else 0
        return self._publish(topic, [(_INT32.pack(len(body)) + body, 1)], due)

    def _delay(self, text: str | None) -> int:
        if text is None:
            return 0
        digits = text.removeprefix("-").removeprefix("+")
        if not (digits.isascii() and digits.isdigit()) or len(text) - len(digits) > 1:
            raise Status(400, "INVALID_DEFER")
        delay = int(text)
        if not 0 <= delay <= self._broker.options.max_req_timeout * 1000:
            raise Status(400, "INVALID_DEFER")
        return delay

    def _mpub(self, request: Request) -> Answer:
        if request.length > self._broker.options.max_body_size:
            raise Status(413, "BODY_TOO_BIG")
        topic = self._topic_made(request)
        body = request.body(self._broker.options.max_body_size)
        binary = request.get("binary")
        if binary is not None and _BOOLEANS.get(binary, True):
            return self._publish(topic, self._binary(body))
        return self._publish(topic, self._lines(body))

    def _lines(self, body: bytes) -> list[Payload]:
        if len(body) > self._broker.options.max_body_size:
            raise Status(413, "BODY_TOO_BIG")
        try:
            return payloads.lines(body, self._broker.options.max_msg_size)
        except payloads.TooLong:
            raise Status(413, "MSG_TOO_BIG") from None

    def _binary(self, body: bytes) -> list[Payload]:
        options, slices = self._broker.options, Slices()
        if len(body) < 4 or not 0 < (count := _INT32.unpack_from(body)[0]) <= (options.max_body_size - 4) // 5:
            raise Status(413, "BAD_BODY")
        offset = 4
        for at in range(count):
            if not at % _TURN:
                slices.breathe()
            if offset + 4 > len(body):
                raise Status(413, "BAD_MESSAGE")
            (size,) = _INT32.unpack_from(body, offset)
            offset += 4 + size
            if not 0 < size <= options.max_msg_size or offset > len(body):
                raise Status(413, "BAD_MESSAGE")
        return payloads.cut(body[4:offset], count)

    def _publish(self, topic: Topic, what: list[Payload], due: int = 0) -> Answer:
        group = self._broker.publish([(topic, Entry(topic.id, payload, count, due)) for payload, count in what])
        if group is not None:
            group.wait()
        return "OK"

    # --- topics ------------------------------------------------------------------------------------------------------

    def _topic_made(self, request: Request) -> Topic:
        name = request.require("topic")
        if not is_valid(name):
            raise Status(400, "INVALID_TOPIC")
        return self._broker.topic(name)

    def _topic(self, request: Request, *, checked: bool = False) -> Topic:
        name = request.require("topic")
        if checked and not is_valid(name):
            raise Status(400, "INVALID_TOPIC")
        if name not in self._broker.topics:
            raise Status(404, "TOPIC_NOT_FOUND")
        return self._broker.topics[name]

    def _create_topic(self, request: Request) -> Answer:
        topic = self._topic_made(request)
        topic.settle()
        topic.complete.wait()
        return None

    def _delete_topic(self, request: Request) -> Answer:
        topic = self._topic(request)
        self._broker.delete_topic(topic.name)
        topic.settle()
        return None

    def _empty_topic(self, request: Request) -> Answer:
        self._topic(request, checked=True).empty()
        self._broker.save()
        return None

    def _pause_topic(self, request: Request, paused: bool) -> Answer:
        topic = self._topic(request)
        topic.pause(paused)
        topic.settle()
        return None

    # --- channels ----------------------------------------------------------------------------------------------------

    def _names(self, request: Request) -> tuple[Topic, str]:
        topic, channel = web.names(request)
        if topic not in self._broker.topics:
            raise Status(404, "TOPIC_NOT_FOUND")
        return self._broker.topics[topic], channel

    def _channel(self, request: Request) -> tuple[Topic, Channel]:
        topic, name = self._names(request)
        if name not in topic.channels:
            raise Status(404, "CHANNEL_NOT_FOUND")
        return topic, topic.channels[name]

    def _create_channel(self, request: Request) -> Answer:
        topic, name = self._names(request)
        topic.channel(name)
        topic.settle()
        return None

    def _delete_channel(self, request: Request) -> Answer:
        topic, channel = self._channel(request)
        topic.delete_channel(channel.name)
        topic.settle()
        return None

    def _empty_channel(self, request: Request) -> Answer:
        self._channel(request)[1].empty()
        self._broker.save()
        return None

    def _pause_channel(self, request: Request, paused: bool) -> Answer:
        topic, channel = self._channel(request)
        channel.pause(paused)
        topic.settle()
        return None
