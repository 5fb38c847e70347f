"""What a broker URL of NSQ says: which nsqds, which nsqlookupds, which options. Nothing is looked up or opened here.

``python -m framework.transports.nsq.urls`` prints the list of options that docs/nsq.md has.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any
from urllib.parse import unquote

from framework import durations
from framework.errors import BadSetting, shown
from framework.markdown import item
from framework.transports import addresses
from framework.transports.addresses import join_address, split_address
from framework.transports.nsq import wire

__all__ = ["Addresses", "Options", "join_address", "read", "split_address"]

NSQD_PORT = 4150
LOOKUPD_PORT = 4161
LOOKUPD_HTTPS_PORT = 443
_PORTS = {
    "nsq": NSQD_PORT,
    "nsq+tls": NSQD_PORT,
    "nsq+lookupd": LOOKUPD_PORT,
    "nsq+lookupd+https": LOOKUPD_HTTPS_PORT,
}
_SECRETS = ("auth_secret", "secret", "password", "token")
_SECRET = re.compile(rf"(?<=[?&])((?:{'|'.join(_SECRETS)})=)[^&#]*")
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_MAX_INT = 2**31 - 1


def _yes(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError("write true or false")
    return _BOOLEANS[text.lower()]


def _number(least: int, most: int = _MAX_INT, unit: str = "number") -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,10}", text) or not least <= int(text) <= most:
            raise ValueError(f"write a {unit}" + (f" from {least} to {most}" if most < _MAX_INT else ""))
        return int(text)

    return parse


def _time(least: float, most: float, words: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        seconds = durations.seconds(text)
        if seconds is None or not least <= seconds <= most:
            raise ValueError(f"nsqd takes {words}")
        return seconds

    return parse


def _buffer_size(text: str) -> int:
    if text == "off":
        return -1
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < 64:
        raise ValueError("write a number of bytes from 64 up to its --max-output-buffer-size (65536), or off")
    return int(text)


def _word(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError("write what it shall be, in printable characters")
    return text


def _agent(text: str) -> str:
    if not re.fullmatch(r"[^\s/]+/[^\s/]+", text):
        raise ValueError("write name/version")
    return text


def _version(text: str) -> str:
    if text not in ("1.2", "1.3"):
        raise ValueError("write 1.2 or 1.3")
    return text


def _option(default: Any, parse: Callable[[str], Any], example: str, text: str, *, shown: str = "") -> Any:
    return field(default=default, metadata={"parse": parse, "example": example, "help": text, "shown": shown})


@dataclass(frozen=True, slots=True)
class Options:
    """The query parameters, and the table of them: name, default, how its text is read, an example, and what it means.
    Times in seconds, sizes in bytes."""

    heartbeat: float = _option(
        30.0,
        _time(1, 60, "1s to 60s"),
        "30s",
        "How often nsqd sends a heartbeat; a peer that is silent for two is dead.",
        shown="30s",
    )
    max_msg_size: int = _option(
        wire.MAX_MESSAGE, _number(1, unit="number of bytes"), str(wire.MAX_MESSAGE),
        "The `--max-msg-size` of the nsqds: larger bodies are refused before they are sent.",
    )  # fmt: skip
    max_body_size: int = _option(
        wire.MAX_BODY,
        _number(1, unit="number of bytes"),
        str(wire.MAX_BODY),
        "The `--max-body-size` of the nsqds: what one MPUB may hold.",
    )
    http_port: int = _option(
        0, _number(1, 65535, "port"), str(NSQD_PORT + 1), "Where the nsqds answer HTTP.", shown="the port after the TCP port"
    )
    client_id: str = _option(
        "",
        _word,
        "billing-7",
        "How nsqd's `/stats` and nsqadmin name this worker.",
        shown="first part of the host's name, and the process id",
    )
    hostname: str = _option("", _word, "web1.example", "The host, as they show it.", shown="the host's name")
    user_agent: str = _option(
        "", _agent, "shop/2.1", "The program, as they show it, `name/version`.", shown="nsq-workers/ and its version"
    )
    msg_timeout: float = _option(
        0.0, _time(1, 86400, "1s up to its --max-msg-timeout (15m)"), "2m",
        "How long nsqd waits for a message before it delivers it again. Leases are kept by touching, so few need it.",
        shown="nsqd's `--msg-timeout`",
    )  # fmt: skip
    max_req_timeout: float = _option(
        -1.0, _time(0, 366 * 86400, "0s to 366 days"), "30m",
        "The `--max-req-timeout` of the nsqds, where they do not say it by HTTP: the longest delay that they take.",
        shown="asked by HTTP, else 1h",
    )  # fmt: skip
    output_buffer_size: int = _option(
        0,
        _buffer_size,
        "16384",
        "Bytes that nsqd gathers before it sends; `off` sends each message by itself.",
        shown="nsqd's own, 16384",
    )
    output_buffer_timeout: float = _option(
        0.025, _time(0.001, 60, "25ms to 30s"), "25ms",
        "How long nsqd may hold back messages to gather more; its own default, 250ms, makes light traffic slow.", shown="25ms",
    )  # fmt: skip
    sample_rate: int = _option(
        0, _number(1, 99, "percentage"), "10",
        "Deliver about this percentage of a channel's messages. **The others are gone for that channel.**",
        shown="all are delivered",
    )  # fmt: skip
    topology_region: str = _option(
        "", _word, "eu-west", "For nsqds with topology-aware consumption (newer than 1.3.0): where this worker is.", shown="none"
    )
    topology_zone: str = _option("", _word, "eu-west-1a", "The same, more closely.", shown="none")
    tls: bool = _option(
        False, _yes, "true", "TLS to the nsqds, also to those that nsqlookupds name; `nsq+tls://` says the same.", shown="false"
    )
    tls_ca: str = _option(
        "", _word, "/etc/nsq/ca.pem", "File with the certificates (PEM) to trust in place of the system's.", shown="the system's"
    )
    tls_cert: str = _option("", _word, "/etc/nsq/client.pem", "File with the client's certificate.", shown="none")
    tls_key: str = _option(
        "", _word, "/etc/nsq/client.key", "File with its key, without a passphrase.", shown="in the file of `tls_cert`"
    )
    tls_server_name: str = _option(
        "", _word, "nsqd.example", "The name that the certificate must have.", shown="the host that is connected to"
    )
    tls_min_version: str = _option("1.2", _version, "1.3", "The oldest version of TLS to accept.")
    tls_insecure_skip_verify: bool = _option(
        False, _yes, "true",
        "Trust any certificate. **Whoever is on the way can then read and change everything.**", shown="false",
    )  # fmt: skip
    headers: bool = _option(
        False,
        _yes,
        "true",
        "Headers of messages, in an envelope around the body: say so here and at their readers.",
        shown="false",
    )
    snappy: bool = _option(False, _yes, "true", "Compress with snappy, where nsqd grants it.", shown="false")
    deflate: bool = _option(False, _yes, "true", "Compress with deflate, where nsqd grants it; not beside snappy.", shown="false")
    deflate_level: int = _option(
        6, _number(1, 9), "6", "From 1, fast, to 9, small; nsqd caps its own side at its `--max-deflate-level`."
    )
    auth_secret_file: str = _option(
        "",
        _word,
        "/run/secrets/nsq",
        "File with the secret for nsqds that ask for AUTH; read at each connection.",
        shown="`$NSQ_AUTH_SECRET`",
    )


@dataclass(frozen=True, slots=True)
class Addresses:
    """Every broker URL given, read: ``host:port``, IPv6 hosts in brackets; ``/path`` for a Unix socket; an nsqlookupd behind
    HTTPS with ``https://`` before it."""

    nsqds: tuple[str, ...]
    lookupds: tuple[str, ...]
    options: Options


def read(urls: Sequence[str]) -> Addresses:
    """Read ``nsq://host[:4150][,…]``, ``nsq+lookupd://host[:4161][,…]`` and the other schemes, with their options.

    Raises BadSetting naming the URL and the fix.
    """
    nsqds: dict[str, None] = {}  # dicts: no doubles, in order
    lookupds: dict[str, None] = {}
    _refuse_secrets(urls)
    for url in urls:
        scheme = url.partition("://")[0]
        if scheme == "nsq+unix":
            nsqds[_socket_path(url)] = None
        elif scheme.startswith("nsq+lookupd"):
            before = "https://" if scheme.endswith("https") else ""
            lookupds.update(dict.fromkeys(before + one for one in addresses.hosts(url, _PORTS[scheme], broker="NSQ")))
        else:
            nsqds.update(dict.fromkeys(addresses.hosts(url, _PORTS[scheme], broker="NSQ")))
    given = addresses.options(urls, [row.name for row in fields(Options)])
    if any(url.startswith("nsq+tls://") for url in urls) and given.setdefault("tls", "true") != "true":
        raise BadSetting(f"tls={given['tls']!r} beside nsq+tls:// in the broker URLs: leave one of them out")
    return Addresses(tuple(nsqds), tuple(lookupds), _checked(_options(given), given, list(nsqds), list(lookupds)))


def _socket_path(url: str) -> str:
    path = unquote(re.split(r"[?#]", url.partition("://")[2], maxsplit=1)[0])
    if not path.startswith("/") or path.endswith("/"):
        raise BadSetting(f"broker URL {url!r}: write the whole path of nsqd's Unix socket, as nsq+unix:///run/nsqd.sock")
    return path


def _refuse_secrets(urls: Sequence[str]) -> None:
    """First of all, so that no other sentence about the URL can show it."""
    for url in urls:
        if _SECRET.search(url):
            shown = _SECRET.sub(r"\1…", url)
            raise BadSetting(
                f"broker URL {shown!r}: a URL is seen in logs and process lists; put the secret into a file "
                "(auth_secret_file=/path/of/it) or into $NSQ_AUTH_SECRET"
            )


def _options(given: Mapping[str, str]) -> Options:
    values = {}
    for row in fields(Options):
        if row.name in given:
            try:
                values[row.name] = row.metadata["parse"](given[row.name])
            except ValueError as error:
                words = f"{error}, such as {row.name}={row.metadata['example']}"
                raise BadSetting(f"{row.name}={shown(given[row.name])} in a broker URL: {words}") from None
    return Options(**values)


def _checked(options: Options, given: Mapping[str, str], nsqds: Sequence[str], lookupds: Sequence[str]) -> Options:
    """Options that only make sense, or none, together."""
    if options.snappy and options.deflate:
        raise BadSetting("snappy and deflate in the broker URLs: nsqd compresses by one of them; leave one out")
    if "deflate_level" in given and not options.deflate:
        raise BadSetting(f"deflate_level={options.deflate_level} in a broker URL without deflate: add deflate=true")
    alone = [name for name in given if name.startswith("tls_")]
    if alone and not (options.tls or any(one.startswith("https://") for one in lookupds)):
        raise BadSetting(f"{alone[0]} in a broker URL without TLS: write nsq+tls:// in place of nsq://, or add tls=true")
    if options.tls_key and not options.tls_cert:
        raise BadSetting("tls_key in a broker URL without tls_cert: give the file of the certificate as well")
    if options.tls_insecure_skip_verify and options.tls_ca:
        raise BadSetting(
            "tls_insecure_skip_verify and tls_ca in the broker URLs: with the first nothing is verified; leave one out"
        )
    for node in nsqds:
        if options.tls and node.startswith("/") and not (options.tls_server_name or options.tls_insecure_skip_verify):
            raise BadSetting(f"TLS over the Unix socket {node}: say which name its certificate has, by tls_server_name=")
    return options


def as_markdown() -> str:
    """The list of docs/nsq.md."""
    items = [
        item(f"`{row.name}={row.metadata['example']}` (default: {row.metadata['shown'] or row.default}): {row.metadata['help']}")
        for row in fields(Options)
        if row.default is not MISSING
    ]
    return "\n".join([*items, ""])


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
