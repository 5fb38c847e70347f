"""What a handler can take: its argument's annotation says what a body is decoded to, before the function is called.

    workers run examples.payload_types
    echo '{"name": "tea", "price": 3}' | workers publish products

A body that is not of that type never reaches the function: it goes to the dead letter topic with the reason.
"""

from dataclasses import dataclass

import msgspec

from framework import Batch, Message, handler


@dataclass
class Product:
    name: str
    price: float


class Priced(msgspec.Struct):
    price: float


@handler("products", "message")
def whole(message: Message) -> None:
    """The body and all that the broker knows of it: id, attempts, time, topic, channel, node."""
    print(f"Message: {len(message.body)} bytes, attempt {message.attempts}", flush=True)


@handler("products", "bytes")
def raw(body: bytes) -> None:
    print(f"bytes: {body!r}", flush=True)


@handler("products", "text")
def text(body: str) -> None:
    print(f"str: {body}", flush=True)


@handler("products", "json")
def json(body: dict) -> None:
    print(f"dict: {sorted(body)}", flush=True)


@handler("products", "dataclass")
def typed(product: Product) -> None:
    print(f"dataclass: {product.name} at {product.price}", flush=True)


@handler("products", "struct")
def fast(priced: Priced) -> None:
    """A msgspec.Struct decodes fastest; fields that it does not name are skipped."""
    print(f"Struct: {priced.price}", flush=True)


@handler("products", "batch", batch=100, linger=0.2)
def many(products: Batch[Product]) -> None:
    """Many in one call; ``list[Product]`` is the same without ``fail`` and ``messages``. A body that is none fails alone."""
    print(f"Batch: {sum(product.price for product in products)} for {len(products)}", flush=True)
