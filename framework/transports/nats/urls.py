"""What a broker URL of NATS says: which clusters, by which servers each, who we are, which options. Nothing is looked up here.

A URL is one cluster, whose servers all serve the same streams: ``nats://a:4222,b:4222``. Several URLs are several clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import unquote

from framework import names
from framework.errors import BadName, BadSetting, WrongUse
from framework.transports import addresses

PORT = 4222
SHORTEST = 0.5
"""Seconds of a lease: the engine looks at leases every 0.1 s, and one of 0.2 s was lost again and again on a busy machine."""
_FILES = ("tls_ca", "tls_cert", "tls_key", "nkey_file", "creds_file")
_OPTIONS = ("ack_wait", "ping_interval", "max_payload", "max_ack_pending", "replicas", "retention", "tls", "tls_first", *_FILES)
_RETENTIONS = ("limits", "workqueue")


@dataclass(frozen=True, slots=True)
class Options:
    """The query parameters. Times in seconds, sizes in bytes."""

    ack_wait: float = 30.0
    """The lease of the consumers that are made here; one that exists keeps its own."""
    ping_interval: float = 10.0
    """A server that answers nothing for two of these is given up."""
    max_payload: int = 1024 * 1024
    """The max_payload of the servers: what is larger with its headers is refused before it is sent."""
    max_ack_pending: int = 10_000
    """Of the consumers that are made here: how many messages all workers of a channel may hold at once."""
    replicas: int = 1
    """Of the streams that are made here."""
    tls: bool = False
    """TLS, or nothing. Without it, it is spoken where the server asks for it."""
    tls_first: bool = False
    """TLS from the first byte, for servers with ``handshake_first``."""
    retention: str = "limits"
    """Of the streams that are made here: ``limits`` keeps what was handled, ``workqueue`` does not, and takes one channel."""


@dataclass(frozen=True, slots=True)
class Login:
    """How we say who we are. What is empty is not said. Never shown."""

    user: str = ""
    password: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class Secrets:
    """Files: whom to trust, and what to show. Empty: none."""

    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    nkey_file: str = ""
    """The seed of an NKEY."""
    creds_file: str = ""
    """The JWT of a user of an account, and the seed of that user's NKEY."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The servers of one URL."""

    node: str
    """How it is called: by its first server."""
    servers: tuple[str, ...]
    login: Login


@dataclass(frozen=True, slots=True)
class Addresses:
    """Every broker URL given, read. Addresses as ``host:port``, IPv6 hosts in brackets."""

    clusters: Mapping[str, Cluster]
    options: Options
    secrets: Secrets = Secrets()


def read(urls: Sequence[str]) -> Addresses:
    """Read ``nats://[user:password@|token@]host[:4222][,…]`` and ``tls://…``, with ``?ack_wait=30s`` and the like.

    Raises BadSetting naming the URL, without what is secret in it, and the fix."""
    clusters, bare = read_clusters(urls, PORT, _login, Cluster)
    given = addresses.options(bare, _OPTIONS)
    default = Options()
    first = yes("tls_first", given)
    tls = yes("tls", given) or first or any(url.partition("://")[0] in ("tls", "nats+tls") for url in urls)
    return Addresses(
        clusters,
        replace(
            of_streams(given),
            ping_interval=addresses.seconds("ping_interval", given, default.ping_interval, 0.5, 120.0),
            max_payload=addresses.size("max_payload", given, default.max_payload),
            tls=tls,
            tls_first=first,
        ),
        _secrets({name: given.get(name, "") for name in _FILES}),
    )


def _secrets(files: Mapping[str, str]) -> Secrets:
    if files["tls_key"] and not files["tls_cert"]:
        raise BadSetting("tls_key in a broker URL without tls_cert: give the file of the certificate as well")
    if files["nkey_file"] and files["creds_file"]:
        raise BadSetting("nkey_file and creds_file in a broker URL: give one of them, creds_file where the server has operators")
    return Secrets(**files)


def of_streams(given: Mapping[str, str]) -> Options:
    """Only what they say of streams and consumers. Raises BadSetting."""
    default = Options()
    return Options(
        ack_wait=addresses.seconds("ack_wait", given, default.ack_wait, SHORTEST, 86_400.0),
        max_ack_pending=addresses.size("max_ack_pending", given, default.max_ack_pending, "messages"),
        replicas=_replicas(given.get("replicas", "1")),
        retention=_retention(given.get("retention", default.retention)),
    )


def yes(name: str, given: Mapping[str, str]) -> bool:
    """The option ``name``, which is true or false. Raises BadSetting."""
    text = given.get(name, "false")
    if text not in ("true", "false"):
        raise BadSetting(f"{name}={text!r} in a broker URL: write true or false")
    return text == "true"


def _login(url: str) -> tuple[Login, str]:
    """Who we are, and the URL without it."""
    said, bare = addresses.split_login(url)
    if said is None:
        return Login(), url
    user, colon, password = said.partition(":")
    if not user or (colon and not password):
        raise BadSetting(f"broker URL {bare!r}: before the @ stands user:password, or a token; one of them is empty")
    if colon:
        return Login(user=unquote(user), password=unquote(password)), bare
    return Login(token=unquote(user)), bare


Made = TypeVar("Made", bound=Cluster)


def read_clusters(
    urls: Sequence[str],
    port: int,
    login_of: Callable[[str], tuple[Login, str]],
    make: Callable[[str, tuple[str, ...], Login], Made],
) -> tuple[dict[str, Made], list[str]]:
    """A cluster for each URL, by its first server; and the URLs without who we are. Raises BadSetting."""
    found: dict[str, Made] = {}
    bare = []
    for url in urls:
        login, shown = login_of(url)
        servers = tuple(dict.fromkeys(addresses.hosts(shown, port, broker="NATS")))
        found.setdefault(servers[0], make(servers[0], servers, login))
        bare.append(shown)
    return found, bare


def _replicas(text: str) -> int:
    if text not in ("1", "3", "5"):
        raise BadSetting(f"replicas={text!r} in a broker URL: write 1, 3 or 5, and no more than the cluster has servers")
    return int(text)


def _retention(text: str) -> str:
    if text not in _RETENTIONS:
        raise BadSetting(f"retention={text!r} in a broker URL: write {' or '.join(_RETENTIONS)}")
    return text


# --- names -------------------------------------------------------------------------------------------------


def accept(topic: str, channels: Sequence[str], options: Options) -> None:
    """``contract.Transport.accept``."""
    check(topic)
    for channel in channels:
        if channel.endswith(names.EPHEMERAL):
            raise BadName(f"channel {channel!r}: NATS keeps every durable consumer; leave {names.EPHEMERAL!r} out")
    if len(set(channels)) > 1 and options.retention == "workqueue":
        listed = ", ".join(sorted(set(channels)))
        raise WrongUse(
            f"topic {topic!r} has the channels {listed}, but a stream with retention=workqueue gives each message to "
            "one of them: leave retention= out of the broker URL, or give each channel a topic of its own"
        )


def check(topic: str) -> None:
    """Raises BadName for a topic that is no subject."""
    if topic.endswith(names.EPHEMERAL):
        raise BadName(f"topic {topic!r}: NATS has no topics that are not kept; leave {names.EPHEMERAL!r} out")
    if not all(topic.split(".")) or topic.startswith("_INBOX."):
        raise BadName(
            f"topic {topic!r} is no subject to NATS: it has words with one dot between them, and does not begin with _INBOX"
        )


def mapped(name: str) -> str:
    """The name of the stream of a topic, or of the consumer of a channel: it, but for dots, which NATS does not take there.

    Names have no ``~``, so that no two of them become one."""
    return name.replace(".", "~")


def unmapped(name: str) -> str:
    """The channel of a consumer."""
    return name.replace("~", ".")
