"""What a broker URL of RocketMQ says: which name servers, who we are, which options; and its names. Nothing is looked up here.

All URLs together name one RocketMQ: name servers that all know the same brokers, ``rocketmq://ns-a:9876,ns-b:9876``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from framework import durations, names
from framework.errors import BadName, BadSetting
from framework.transports import addresses

PORT = 9876
MAX_NAME = 127
"""Characters of a topic, as RocketMQ counts them."""
MAX_GROUP = 120
"""Characters of a group, whose retry topic has seven more."""
_FILES = ("tls_ca", "tls_cert", "tls_key")
_OPTIONS = ("mode", "lease", "poll", "answer_timeout", "namespace", "cluster", "tags", "max_body", "dlq", "tls", *_FILES)
_PLAIN = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ALL_TAGS = "*"
"""In RocketMQ's words. It would be given all, and what is asked for is compared here again: no message has that tag."""
_TAGS = re.compile(r"[^\s|\x00-\x1f]+(\|\|[^\s|\x00-\x1f]+)*")


@dataclass(frozen=True, slots=True)
class Options:
    """The query parameters. Times in seconds, sizes in bytes."""

    mode: str = ""
    """How messages are asked for: ``pop`` or ``pull``; empty: by POP where a broker has it."""
    lease: float = 60.0
    """invisibleTime: how long what was popped is kept from others."""
    poll: float = 2.0
    """pollTime: how long a POP waits at its broker. Nothing takes it back, so a drain takes as long."""
    answer_timeout: float = 10.0
    """A server that owes an answer, and has said nothing for so long, is given up."""
    namespace: str = ""
    """Put before every topic and group."""
    cluster: str = ""
    """Where topics are made that there are not; empty: there is only one."""
    tags: str = ""
    """Only messages with one of these are asked for: ``a||b``; empty: all."""
    max_body: int = 4 * 1024 * 1024
    """maxMessageSize of the brokers."""
    dlq: bool = False
    """What is given up goes to RocketMQ's ``%DLQ%`` topic of its group as well."""
    tls: bool = False


@dataclass(frozen=True, slots=True)
class Secrets:
    """Who we are, whom to trust, and what to show. Never shown. Empty: nobody, and none."""

    access_key: str = ""
    secret: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Every broker URL given, read. Addresses as ``host:port``, IPv6 hosts in brackets."""

    name_servers: tuple[str, ...]
    options: Options
    secrets: Secrets = Secrets()


def read(urls: Sequence[str]) -> Addresses:
    """Read ``rocketmq://[access key:secret@]host[:9876][,…]`` and ``rocketmq+tls://…``, with ``?lease=60s`` and the like.

    Raises BadSetting naming the URL, without what is secret in it, and the fix."""
    found: list[str] = []
    bare: list[str] = []
    logins: set[tuple[str, str]] = set()
    for url in urls:
        login, shown = _login(url)
        found += addresses.hosts(shown, PORT, broker="RocketMQ")
        bare.append(shown)
        logins.add(login)
    if len(logins) > 1:
        raise BadSetting(f"broker URL {bare[-1]!r}: another URL has another access key; all name servers are of one RocketMQ")
    given = addresses.options(bare, _OPTIONS)
    tls = _yes("tls", given) or any(url.startswith("rocketmq+tls:") for url in urls)
    return Addresses(tuple(dict.fromkeys(found)), _options(given, tls), _secrets(logins.pop(), given))


def _options(given: Mapping[str, str], tls: bool) -> Options:
    default = Options()
    return Options(
        mode=_one_of("mode", ("pop", "pull"), given),
        lease=_time(given, "lease", default.lease, 1.0, 86_400.0),
        poll=_time(given, "poll", default.poll, 0.1, 30.0),
        answer_timeout=_time(given, "answer_timeout", default.answer_timeout, 0.5, 100.0),
        namespace=_plain("namespace", given),
        cluster=given.get("cluster", ""),
        tags=_tags(given.get("tags", "")),
        max_body=addresses.size("max_body", given, default.max_body),
        dlq=_yes("dlq", given),
        tls=tls,
    )


def _secrets(login: tuple[str, str], given: Mapping[str, str]) -> Secrets:
    files = {name: given.get(name, "") for name in _FILES}
    if files["tls_key"] and not files["tls_cert"]:
        raise BadSetting("tls_key in a broker URL without tls_cert: give the file of the certificate as well")
    return Secrets(*login, **files)


def _login(url: str) -> tuple[tuple[str, str], str]:
    """Access key and secret, and the URL without them."""
    scheme, _, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    said, at, hosts = authority.rpartition("@")
    if not at:
        return ("", ""), url
    bare = f"{scheme}://{rest.replace(authority, hosts, 1)}"
    key, _, secret = said.partition(":")
    if not key or not secret:
        raise BadSetting(f"broker URL {bare!r}: before the @ stands access key:secret; one of them is missing")
    return (unquote(key), unquote(secret)), bare


def _yes(name: str, given: Mapping[str, str]) -> bool:
    text = given.get(name, "false")
    if text not in ("true", "false"):
        raise BadSetting(f"{name}={text!r} in a broker URL: write true or false")
    return text == "true"


def _one_of(name: str, words: Sequence[str], given: Mapping[str, str]) -> str:
    text = given.get(name, "")
    if text and text not in words:
        raise BadSetting(f"{name}={text!r} in a broker URL: write {' or '.join(words)}")
    return text


def _time(given: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    if name not in given:
        return default
    seconds = durations.seconds(given[name])
    if seconds is None or not least <= seconds <= most:
        raise BadSetting(f"{name}={given[name]!r} in a broker URL: write {least:g}s to {most:g}s, such as {name}={default:g}s")
    return seconds


def _plain(name: str, given: Mapping[str, str]) -> str:
    text = given.get(name, "")
    if text and not _PLAIN.fullmatch(text):
        raise BadSetting(f"{name}={text!r} in a broker URL: use 1 to 64 of the characters a-z A-Z 0-9 _ -")
    return text


def _tags(text: str) -> str:
    if text and not _TAGS.fullmatch(text):
        raise BadSetting(f"tags={text!r} in a broker URL: write one tag, or several as a||b, without spaces")
    return "" if text == ALL_TAGS else text


# --- names -------------------------------------------------------------------------------------------------

_OWN = re.compile(
    r"%(RETRY|DLQ)%|(?i:rmq_sys_)|.*_REPLY_TOPIC$|(TBW102|SELF_TEST_TOPIC|OFFSET_MOVED_EVENT|BenchmarkTest|SCHEDULE_TOPIC_XXXX)$"
)


def is_own(topic: str) -> bool:
    """Whether RocketMQ keeps something of its own in ``topic``."""
    return bool(_OWN.match(topic))


class Names:
    """Topics and channels <-> what RocketMQ calls them. It takes no dot, so a dot is ``%2E`` there, which no name of ours has."""

    def __init__(self, namespace: str = "") -> None:
        self._prefix = f"{namespace}%" if namespace else ""

    def accept(self, topic: str, channels: Iterable[str]) -> None:
        """Raises BadName for one that it cannot have."""
        for kind, name in (("topic", topic), *(("channel", channel) for channel in channels)):
            self._check(kind, name)

    def _check(self, kind: str, name: str) -> None:
        if name.endswith(names.EPHEMERAL):
            raise BadName(f"{kind} {name!r}: RocketMQ keeps every {kind}; leave {names.EPHEMERAL!r} out")
        if kind == "topic" and is_own(self.mapped(name)):
            raise BadName(f"topic {name!r}: RocketMQ keeps something of its own there; choose another name")
        size = len(self.mapped(name))
        if size > MAX_NAME:
            raise BadName(
                f"{kind} {name!r}: RocketMQ takes {MAX_NAME} characters, and this has {size} there, where "
                "a dot is %2E: shorten it"
            )

    def mapped(self, name: str) -> str:
        """The topic of a topic, or the group of a channel that is read by POP."""
        return self._prefix + name.replace(".", "%2E")

    def pull_group(self, topic: str, channel: str) -> str:
        """The group of a channel that is read by PULL. All members of one must read the same topics, because its queues are
        shared among all of them; so it is of one topic."""
        return f"{self.mapped(topic)}|{Names().mapped(channel)}"

    def accept_pull(self, topic: str, channels: Iterable[str]) -> None:
        """Raises BadName for a channel whose group would be too long."""
        for channel in channels:
            size = len(self.pull_group(topic, channel))
            if size > MAX_GROUP:
                raise BadName(
                    f"channel {channel!r} of topic {topic!r}: by PULL both names make a group, of which RocketMQ takes "
                    f"{MAX_GROUP} characters, and this has {size}: shorten them"
                )

    def channel_of(self, topic: str, group: str) -> str | None:
        """The channel of a group that reads ``topic``, by POP or by PULL; None: it is none of ours."""
        start = f"{self.mapped(topic)}|"
        return Names().unmapped(group.removeprefix(start)) if group.startswith(start) else self.unmapped(group)

    def unmapped(self, name: str) -> str | None:
        """The topic or channel of a topic or group; None: it is none of this namespace, or RocketMQ's own."""
        if not name.startswith(self._prefix):
            return None
        found = name[len(self._prefix) :].replace("%2E", ".")
        return found if names.is_valid(found) else None
