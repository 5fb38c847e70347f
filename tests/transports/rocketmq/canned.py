"""A RocketMQ that has as many messages as are asked for, and keeps none: to count what a worker does for each of them.

It is name server and broker in one, and its answers do not depend on the machine's load: each POP and PULL is given all that it
asks for. Not a broker to test promises on.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress

from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import RESPONSE, Decoder, Frame, encode

BODY = b"x" * 200
QUEUES = 4
NAME = "canned"
_HEAD = struct.Struct(">iIIiiqqiq8sq8siqi")


class Canned:
    """``messages``: of ``topic``, the only one there is, in each queue by PULL, in all by POP. Made running, in native threads
    of its own."""

    def __init__(self, messages: int, topic: str = "bench-1") -> None:
        self.messages = messages
        self.topic = topic
        self.finished = 0
        """By POP."""
        self.committed: Counter[int] = Counter()
        """Queue -> how far, by PULL."""
        self.offsets: Mapping[int, int] = {}
        """Queue -> how far it says that the group is."""
        self.asked: Counter[int] = Counter()
        """Request code -> how many came."""
        self.others: dict[str, object] = {}
        """Further brokers that it names, which do not exist."""
        self.refuses: Collection[int] = ()
        """Codes of requests that it does not know."""
        self._given = 0
        self._bodies: dict[tuple[str, int], tuple[list[bytes], list[bytes]]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def handled(self) -> int:
        return self.finished + self.committed.total()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        decoder = Decoder()
        with suppress(OSError), client:
            while data := client.recv(1 << 18):
                answers = [self._answer(frame) for frame in decoder.feed(data) if not frame.is_oneway]
                client.sendall(b"".join(answers))

    def _answer(self, asked: Frame) -> bytes:
        """Nothing, where it waits."""
        self.asked[asked.code] += 1
        said = self._said(asked)
        if said is None:
            return b""
        code, fields, body = said
        return encode(Frame(code, asked.opaque, fields, body, flag=RESPONSE))

    def _said(self, asked: Frame) -> tuple[int, Mapping[str, str], bytes] | None:
        if asked.code in self.refuses:
            return Answer.REQUEST_CODE_NOT_SUPPORTED, {}, b""
        match asked.code:
            case Request.POP_MESSAGE:
                return self._popped(asked.fields)
            case Request.PULL_MESSAGE:
                return self._pulled(asked.fields)
            case Request.ACK_MESSAGE:
                self.finished += 1
            case Request.BATCH_ACK_MESSAGE:
                self.finished += sum(_bits(one["b"]) for one in json.loads(asked.body)["acks"])
            case Request.UPDATE_CONSUMER_OFFSET:
                self._commit(asked.fields)
            case Request.QUERY_CONSUMER_OFFSET:
                return Answer.SUCCESS, {"offset": str(self.offsets.get(int(asked.fields["queueId"]), 0))}, b""
            case Request.GET_CONSUMER_LIST_BY_GROUP:
                return Answer.SUCCESS, {}, json.dumps({"consumerIdList": [self._client]}).encode()
            case Request.HEART_BEAT:
                self._client = json.loads(asked.body)["clientID"]
            case Request.LOCK_BATCH_MQ:
                return Answer.SUCCESS, {}, json.dumps({"lockOKMQSet": json.loads(asked.body)["mqSet"]}).encode()
            case Request.GET_ROUTEINFO_BY_TOPIC:
                return self._route(asked.fields["topic"])
            case Request.GET_BROKER_CLUSTER_INFO:
                return Answer.SUCCESS, {}, json.dumps({"brokerAddrTable": {NAME: self._broker, **self.others}}).encode()
        return Answer.SUCCESS, {}, b""

    @property
    def _broker(self) -> dict[str, object]:
        return {"brokerName": NAME, "brokerAddrs": {"0": self.address}, "cluster": "c"}

    def _route(self, topic: str) -> tuple[int, Mapping[str, str], bytes]:
        again = topic.startswith("%RETRY%")
        if not again and topic != self.topic:
            return Answer.TOPIC_NOT_EXIST, {}, b""
        queues = {"brokerName": NAME, "perm": 6} | dict.fromkeys(("readQueueNums", "writeQueueNums"), 1 if again else QUEUES)
        return Answer.SUCCESS, {}, json.dumps({"queueDatas": [queues], "brokerDatas": [self._broker]}).encode()

    def _popped(self, asked: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes] | None:
        count = min(int(asked["maxMsgNums"]), self.messages - self._given)
        if count <= 0:
            return None
        queue, first = self._given % QUEUES, self._given
        self._given += count
        fields = {
            "popTime": "1700000000000", "invisibleTime": asked["invisibleTime"], "reviveQid": "0",
            "restNum": str(self.messages - self._given), "startOffsetInfo": f"0 {queue} {first}",
            "msgOffsetInfo": f"0 {queue} {','.join(map(str, range(first, first + count)))}",
        }  # fmt: skip
        return Answer.SUCCESS, fields, self._stored(asked["topic"], queue, first, count)

    def _pulled(self, asked: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes] | None:
        if int(asked["sysFlag"]) & 1:
            self._commit(asked)
        queue, first = int(asked["queueId"]), int(asked["queueOffset"])
        count = min(int(asked["maxMsgNums"]), self.messages - first)
        if count <= 0 or asked["topic"].startswith("%RETRY%"):
            return None
        fields = {"nextBeginOffset": str(first + count), "minOffset": "0", "maxOffset": str(self.messages)}
        return Answer.SUCCESS, fields, self._stored(asked["topic"], queue, first, count)

    def _commit(self, asked: Mapping[str, str]) -> None:
        self.committed[int(asked["queueId"])] = int(asked["commitOffset"])

    def _stored(self, topic: str, queue: int, first: int, count: int) -> bytes:
        """As a broker stores what was published in a batch."""
        name, parts = topic.encode(), []
        for offset in range(first, first + count):
            given = b"UNIQ_KEY\x01%032X\x02WAIT\x01true\x02CLUSTER\x01DefaultCluster\x02" % (offset * QUEUES + queue)
            behind = bytes([len(name)]) + name + struct.pack(">h", len(given)) + given
            size = _HEAD.size + len(BODY) + len(behind)
            host, now = b"\x7f\0\0\1\0\0\x2a\x9f", 1_700_000_000_000
            head = _HEAD.pack(size, 0xDAA320A7, 0, queue, 0, offset, offset * size, 0, now, host, now, host, 0, 0, len(BODY))
            parts += (head, BODY, behind)
        return b"".join(parts)


def _bits(text: str) -> int:
    return int.from_bytes(base64.b64decode(text), "little").bit_count()
