"""What an app consumes as an AsyncAPI 3.0.0 document: channels, operations, and the schemas of payloads.

https://www.asyncapi.com/docs/reference/specification/v3.0.0. A topic is a channel there, and a handler is an operation that
receives from it, with what only this framework has in ``x-nsq-workers``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from framework.handler import HandlerSpec
from framework.message import Message
from framework.payload import name_of

SPECIFICATION = "3.0.0"
_PLAIN = {
    Message: ("application/octet-stream", {"type": "string", "format": "binary"}),
    bytes: ("application/octet-stream", {"type": "string", "format": "binary"}),
    str: ("text/plain; charset=utf-8", {"type": "string"}),
}
_SCHEMAS = ("components", "schemas")


def document(title: str, version: str, handlers: Sequence[HandlerSpec], brokers: Iterable[str] = ()) -> dict[str, Any]:
    """The document of ``handlers``; ``brokers`` are URLs, of which users and passwords are left out."""
    records = list(dict.fromkeys(spec.payload_type for spec in handlers if spec.payload_type not in _PLAIN))
    schemas, components = msgspec.json.schema_components(records, ref_template=_ref(*_SCHEMAS, "{name}"))
    payloads = {repr(record): schema for record, schema in zip(records, schemas, strict=True)}
    made: dict[str, Any] = {
        "asyncapi": SPECIFICATION,
        "info": {"title": title, "version": version},
        "defaultContentType": "application/json",
        "channels": {},
        "operations": {},
        "components": {"schemas": components},
    }
    if servers := _servers(brokers):
        made["servers"] = servers
    for spec in handlers:
        name, message = _message(spec.payload_type, payloads)
        channel = made["channels"].setdefault(spec.topic, {"address": spec.topic, "messages": {}})
        channel["messages"][name] = message
        made["operations"][spec.name] = _operation(spec, name)
    return made


def _operation(spec: HandlerSpec, message: str) -> dict[str, Any]:
    own: dict[str, Any] = {
        "channel": spec.channel, "concurrency": spec.concurrency, "timeout": spec.timeout, "max_attempts": spec.max_attempts,
    }  # fmt: skip
    if spec.batch:
        own |= {"batch": spec.batch, "linger": spec.linger}
    made = {
        "action": "receive",
        "channel": {"$ref": _ref("channels", spec.topic)},
        "title": getattr(spec.function, "__name__", spec.name),
        "messages": [{"$ref": _ref("channels", spec.topic, "messages", message)}],
        "x-nsq-workers": own,
    }
    if words := inspect.getdoc(spec.function):
        summary, _, description = words.partition("\n\n")
        made["summary"] = " ".join(summary.split())
        if description:
            made["description"] = description
    return made


def _message(kind: Any, payloads: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of messages whose bodies are ``kind``, and what is said of them. A Message says nothing of its body."""
    content, schema = _PLAIN.get(kind) or ("application/json", payloads[repr(kind)])
    name = "bytes" if kind is Message else name_of(kind)
    return name, {"name": name, "contentType": content, "payload": schema}


def _servers(brokers: Iterable[str]) -> dict[str, Any]:
    """Each address with its protocol: the scheme of its URL, in which a name server or a lookup is said as well."""
    found = [
        {"host": host, "protocol": parts.scheme}
        for parts in map(urlsplit, brokers)
        for host in parts.netloc.rpartition("@")[2].split(",")
        if host
    ]
    return {f"broker-{number}": server for number, server in enumerate(found, 1)}


def _ref(*parts: str) -> str:
    """A JSON pointer as a fragment (RFC 6901): topics may hold ``#``, and the names of types brackets."""
    return "#/" + "/".join(quote(part.replace("~", "~0").replace("/", "~1"), safe="{}~!$&'()*+,;=:@") for part in parts)
