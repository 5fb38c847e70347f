"""IDENTIFY: the client's wishes, checked as nsqd checks them, and the answer with what it gets."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from framework.nsqd import golang
from framework.nsqd.options import VERSION, Options

_INT32 = (-(1 << 31), (1 << 31) - 1)


@dataclass
class Wishes:
    """The JSON body of IDENTIFY; times in ms, sizes in bytes. What is left out is as here."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    feature_negotiation: bool = False
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    msg_timeout: int = 0


@dataclass
class Granted:
    """What the connection has; times in seconds, sizes in bytes. An interval or timeout of 0 is off."""

    heartbeat_interval: float
    msg_timeout: float
    output_buffer_timeout: float
    output_buffer_size: int = 16 << 10
    sample_rate: int = 0
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 6


def default(options: Options) -> Granted:
    """What a client has that never identifies."""
    return Granted(options.client_timeout / 2, options.msg_timeout, options.output_buffer_timeout)


def decode(body: bytes) -> Wishes:
    """Raises ValueError."""
    return golang.unmarshal(body, Wishes(), {"sample_rate": _INT32})


def grant(wishes: Wishes, granted: Granted, options: Options) -> None:
    """Change ``granted`` to what the client asks for. Raises ValueError in nsqd's words, in nsqd's order."""
    if wishes.heartbeat_interval == -1:
        granted.heartbeat_interval = 0
    elif wishes.heartbeat_interval:
        granted.heartbeat_interval = _milliseconds(
            "heartbeat interval", wishes.heartbeat_interval, 1.0, options.max_heartbeat_interval
        )
    _grant_buffer(wishes, granted, options)
    if not 0 <= wishes.sample_rate <= 99:
        raise ValueError(f"sample rate ({wishes.sample_rate}) is invalid")
    granted.sample_rate = wishes.sample_rate
    if wishes.msg_timeout:
        granted.msg_timeout = _milliseconds("msg timeout", wishes.msg_timeout, 1.0, options.max_msg_timeout)


def _grant_buffer(wishes: Wishes, granted: Granted, options: Options) -> None:
    timeout, size = wishes.output_buffer_timeout, wishes.output_buffer_size
    if timeout == -1:
        granted.output_buffer_timeout = 0
    elif timeout:
        low, high = options.min_output_buffer_timeout, options.max_output_buffer_timeout
        granted.output_buffer_timeout = _milliseconds("output buffer timeout", timeout, low, high)
    if size == -1:
        granted.output_buffer_size, granted.output_buffer_timeout = 1, 0
    elif size:
        if not 64 <= size <= options.max_output_buffer_size:
            raise ValueError(f"output buffer size ({size}) is invalid")
        granted.output_buffer_size = size


def _milliseconds(what: str, value: int, low: float, high: float) -> float:
    if not int(low * 1000) <= value <= int(high * 1000):
        raise ValueError(f"{what} ({value}) is invalid")
    return value / 1000


def grant_upgrades(wishes: Wishes, granted: Granted, options: Options) -> None:
    """The layers between the connection and its socket. Raises ValueError in nsqd's words."""
    granted.tls = wishes.tls_v1 and options.tls_context is not None
    granted.snappy = wishes.snappy and options.snappy
    granted.deflate = wishes.deflate and options.deflate
    level = wishes.deflate_level if granted.deflate and wishes.deflate_level > 0 else 6
    granted.deflate_level = min(level, options.max_deflate_level)
    if granted.snappy and granted.deflate:
        raise ValueError("cannot enable both deflate and snappy compression")


def answer(granted: Granted, options: Options) -> bytes:
    """The JSON that tells the client what it got."""
    return msgspec.json.encode(
        {
            "max_rdy_count": options.max_rdy_count,
            "version": VERSION,
            "max_msg_timeout": round(options.max_msg_timeout * 1000),
            "msg_timeout": round(granted.msg_timeout * 1000),
            "tls_v1": granted.tls,
            "deflate": granted.deflate,
            "deflate_level": granted.deflate_level,
            "max_deflate_level": options.max_deflate_level,
            "snappy": granted.snappy,
            "sample_rate": granted.sample_rate,
            "auth_required": bool(options.auth_http_addresses),
            "output_buffer_size": granted.output_buffer_size,
            "output_buffer_timeout": round(granted.output_buffer_timeout * 1000),
        }
    )
