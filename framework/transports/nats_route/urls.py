"""What a broker URL of a NATS cluster's route port says. Nothing is looked up here.

A URL is one cluster: ``nats-route://a:6222,b:6222``. Several URLs are several clusters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from framework.errors import BadSetting
from framework.transports import addresses
from framework.transports.nats import urls
from framework.transports.nats.urls import Login, Secrets, check

PORT = 6222
_FILES = ("tls_ca", "tls_cert", "tls_key")
_STREAMS = ("ack_wait", "max_ack_pending", "replicas", "retention", "system_account")
_OPTIONS = ("cluster", "account", "listen", "advertise", "ping_interval", "backlog", "jetstream", *_STREAMS, *_FILES)
_STREAMS_BY_DEFAULT = urls.Options()
_WORD = re.compile(r"[^\s*>]+")
_LOOPBACK = re.compile(r"127\.\d+\.\d+\.\d+|localhost|\[?::1\]?")


@dataclass(frozen=True, slots=True)
class Options:
    """The query parameters. Times in seconds."""

    cluster: str = ""
    """The cluster's name; empty: whatever the server that is dialled says."""
    account: str = "$G"
    """Whose subjects are served. ``$G`` is the one of servers without accounts."""
    system_account: str = "$SYS"
    """In which servers take requests of one another, with ``jetstream``."""
    listen: str = ""
    """Where other servers may dial us, ``host:port``; empty: a free port of the loopback interface."""
    advertise: str = ""
    """Where they are told to dial us; empty: where we listen."""
    ping_interval: float = 10.0
    """A server that says nothing for two of these is given up."""
    backlog: int = 100_000
    """Messages that may wait here for a handler, which is all the room that they have; what comes beyond it is lost."""
    jetstream: bool = False
    """Messages are pulled from streams and acknowledged; else they come by queue groups, at most once."""
    streams: urls.Options = _STREAMS_BY_DEFAULT
    """Of the streams and consumers that are made, with ``jetstream``."""


class Cluster(urls.Cluster):
    """The servers of one URL are those that are dialled first; others are, as they tell of them."""

    @property
    def local(self) -> bool:
        """All of it is on this machine, as far as the URL tells."""
        return all(_LOOPBACK.fullmatch(server.rpartition(":")[0]) for server in self.servers)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Every broker URL given, read."""

    clusters: Mapping[str, Cluster]
    options: Options
    secrets: Secrets


def read(given_urls: Sequence[str]) -> Addresses:
    """Read ``nats-route://[user:password@]host[:6222][,…]`` with ``?cluster=east`` and the like.

    Raises BadSetting naming the URL, without what is secret in it, and the fix."""
    clusters, bare = urls.read_clusters(given_urls, PORT, _login, Cluster)
    given = addresses.options(bare, _OPTIONS)
    default = Options()
    options = Options(
        cluster=_word(given, "cluster", default.cluster),
        account=_word(given, "account", default.account),
        system_account=_word(given, "system_account", default.system_account),
        listen=_place(given, "listen"),
        advertise=_place(given, "advertise"),
        ping_interval=addresses.seconds("ping_interval", given, default.ping_interval, 0.2, 120.0),
        backlog=addresses.size("backlog", given, default.backlog, "messages"),
        jetstream=_jetstream(given),
        streams=urls.of_streams(given),
    )
    return Addresses(clusters, options, _secrets({name: given.get(name, "") for name in _FILES}))


def _login(url: str) -> tuple[Login, str]:
    """Who we are, and the URL without it."""
    said, bare = addresses.split_login(url)
    if said is None:
        return Login(), url
    user, _, password = said.partition(":")
    if not user or not password:
        raise BadSetting(f"broker URL {bare!r}: before the @ stands user:password of the cluster's authorization, both of them")
    return Login(user=unquote(user), password=unquote(password)), bare


def _secrets(files: Mapping[str, str]) -> Secrets:
    if any(files.values()) and not (files["tls_cert"] and files["tls_ca"]):
        raise BadSetting(
            "TLS of a route port goes both ways: give tls_ca= (whom to trust) and tls_cert= (what to show, and tls_key=) in the "
            "broker URL"
        )
    return Secrets(**files)


def _jetstream(given: Mapping[str, str]) -> bool:
    wanted = urls.yes("jetstream", given)
    for name in given:
        if name in _STREAMS and not wanted:
            raise BadSetting(f"{name}= in a broker URL is for streams: add jetstream=true, or leave it out")
        if name == "backlog" and wanted:
            raise BadSetting("backlog= in a broker URL is for messages that no stream keeps: leave it out beside jetstream=true")
    return wanted


def _word(given: Mapping[str, str], name: str, default: str) -> str:
    text = given.get(name, default)
    if name in given and not _WORD.fullmatch(text):
        raise BadSetting(f"{name}={text!r} in a broker URL: write one word, without spaces, * and >")
    return text


def _place(given: Mapping[str, str], name: str) -> str:
    if not (text := given.get(name, "")):
        return ""
    found = addresses.hosts(f"nats-route://{text}", PORT, broker="NATS")
    if len(found) != 1:
        raise BadSetting(f"{name}={text!r} in a broker URL: write one address, as {name}=10.0.0.7:{PORT}")
    return found[0]


def accept(topic: str) -> None:
    """``contract.Transport.accept``: topics that are subjects. Each channel is a queue group. Raises BadName."""
    check(topic)
