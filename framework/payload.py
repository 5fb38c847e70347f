"""Encodes and decodes bodies: between the bytes of a message and the value that app code sees. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, get_args, get_origin

import msgspec
from msgspec import inspect as shapes

from framework.errors import BadHandler, BadMessage, UndecodablePayload
from framework.message import Batch, Message

ALLOWED = "Message, bytes, str, dict, a dataclass or a msgspec.Struct"

Decode = Callable[[Message], Any]


def decoder(annotation: Any) -> Decode | None:
    """Message -> an argument of the type ``annotation``; None when the handler takes the Message itself.

    Made once per handler, so that the JSON decoder is built once. What it returns raises UndecodablePayload
    for a body that is not of that type. Raises BadHandler for a type that no body can be decoded to.
    """
    if annotation is Message:
        return None
    if annotation is bytes:
        return attrgetter("body")
    if annotation is str:
        return _text
    if _is_record(annotation):
        return _json(annotation)
    raise BadHandler(f"cannot decode a body to {name_of(annotation)}: annotate the argument with {ALLOWED}")


def container_of(annotation: Any) -> tuple[type | None, Any]:
    """What a handler gets several messages in, Batch or list, and the type of one: ``Batch[Order]`` is (Batch, Order). None and
    the type itself for a handler that gets one at a time."""
    kind = get_origin(annotation) or annotation
    if kind is not Batch and kind is not list:
        return None, annotation
    return kind, next(iter(get_args(annotation)), Message)


def name_of(annotation: Any) -> str:
    """A type as its author wrote it: ``Order``, ``dict[str, int]``."""
    plain = isinstance(annotation, type) and get_origin(annotation) is None
    return annotation.__qualname__ if plain else str(annotation).removeprefix("typing.")


def _is_record(annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    if not isinstance(kind, type):
        return False
    return kind is dict or dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)


def _text(message: Message) -> str:
    try:
        return message.body.decode()
    except UnicodeDecodeError as error:
        raise UndecodablePayload(
            f"the body does not decode to str: {error.reason} at byte {error.start}, so it is not UTF-8"
        ) from error


def _json(kind: Any) -> Decode:
    name = name_of(kind)
    try:
        foreign = next(_foreign_types(shapes.type_info(kind)), None)
        decode = msgspec.json.Decoder(kind).decode
    except (TypeError, NameError) as error:
        raise BadHandler(f"cannot decode a body to {name}: {error}") from error
    if foreign is not None:
        raise BadHandler(
            f"cannot decode a body to {name}: JSON has no {name_of(foreign)}, so take that field's type from msgspec's list"
        )

    def from_json(message: Message) -> Any:
        try:
            return decode(message.body)
        except (ValueError, RecursionError) as error:  # RecursionError: a body of a million brackets
            raise UndecodablePayload(f"the body does not decode to {name}: {error}") from error

    return from_json


def _foreign_types(shape: Any) -> Iterator[type]:
    """The types in ``shape`` that msgspec knows nothing of; it would accept them now, and no body ever."""
    seen: set[int] = set()
    waiting = [shape]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:  # a type that names itself
            continue
        seen.add(id(one))
        if isinstance(one, shapes.CustomType):
            yield one.cls
        elif isinstance(one, tuple):
            waiting.extend(one)
        elif isinstance(one, shapes.Type | shapes.Field):
            waiting.extend(getattr(one, field) for field in one.__struct_fields__)


def encode(payload: Any) -> bytes:
    """The body for ``payload``: bytes as they are, a str as UTF-8, a dict, list, dataclass or Struct as JSON.

    Raises BadMessage for an empty body, and for anything else.
    """
    body = payload if type(payload) is bytes else _encode(payload)
    if not body:
        raise BadMessage("an empty body cannot be published: NSQ and RocketMQ refuse it, so send at least one byte")
    return body


def _encode(payload: Any) -> bytes:
    if isinstance(payload, bytes):
        return payload
    try:
        if isinstance(payload, str):
            return payload.encode()
        if isinstance(payload, bytearray | memoryview):
            return bytes(payload)
        if _has_json(payload):
            return msgspec.json.encode(payload)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadMessage(f"{name_of(type(payload))} could not be encoded: {error}") from error
    if isinstance(payload, Message):
        raise BadMessage("a Message cannot be published as it is: publish its body")
    raise BadMessage(
        f"{name_of(type(payload))} cannot be published: give bytes, a str, or for JSON a dict, list, dataclass or Struct"
    )


def _has_json(payload: Any) -> bool:
    if isinstance(payload, Message | type):
        return False
    return isinstance(payload, dict | list | msgspec.Struct) or dataclasses.is_dataclass(payload)
