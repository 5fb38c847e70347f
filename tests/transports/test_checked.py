"""Bodies that are refused before anything is sent: the error names the message. No server is asked."""

from __future__ import annotations

import pytest

from framework.errors import BadMessage
from framework.transports import open_transports
from framework.transports.contract import HeadsEach


@pytest.mark.parametrize("url", ["rocketmq://127.0.0.1:1", "nats://127.0.0.1:1"])
@pytest.mark.parametrize("wrong", [b"", bytes(8_000_000)], ids=["empty", "large"])
def test_one_of_many_with_headers_each_is_named_by_its_number(url: str, wrong: bytes) -> None:
    (transport,) = open_transports([url])
    producer = transport.producer()
    assert isinstance(producer, HeadsEach)
    try:
        with pytest.raises(BadMessage, match="message 3 of 4"):
            producer.publish_headed("orders", [b"a", b"b", wrong, b"d"], [{"a": "b"}] * 4)
    finally:
        producer.close()
        transport.close()
