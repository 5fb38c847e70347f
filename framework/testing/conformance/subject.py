"""The two classes that the author of a transport fills in: what the suite must know of a broker, and be able to do to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from framework.testing.proxies import Proxies
from framework.transports import open_transports
from framework.transports.contract import Capabilities


class Node(ABC):
    """One server of the broker. Its methods may block: while workers run, they are called in a thread of gevent's pool."""

    url: str
    """As it is given to ``--broker``; the same each time that it is up."""
    address: str = ""
    """The ``host:port`` in ``url``, before which the suite puts a proxy; empty: there is no socket between. Of a cluster
    all of them, as they stand in ``url``, with commas between."""

    @abstractmethod
    def up(self) -> None:
        """Start it, with all that it kept, and return when it takes connections."""

    @abstractmethod
    def down(self) -> None:
        """End it, in the hardest way after which it promises to lose nothing that it had confirmed."""

    def cut(self) -> None:
        """Break its connections; it stays up. Only asked where there is no ``address``."""
        raise NotImplementedError

    def proxied(self) -> tuple[Proxies, str]:
        """Fault proxies before it, and the URL that leads through them. Only asked where there is an ``address``."""
        proxies = Proxies(self.address.split(","))
        return proxies, self.url.replace(self.address, proxies.address)

    def full(self, full: bool) -> None:
        """From now on it has no room for another message, or has it again. Only asked where ``Subject.fills``."""
        raise NotImplementedError


class Subject(ABC):
    """A broker under test. Nodes are made when a case first needs them, and brought down at the end."""

    brief: float = 1.0
    """Seconds: the lease of the nodes made with ``brief=True``, as short as the broker allows within reason (not under 0.5)."""
    max_late: float = 4.0
    """Seconds after which what is due has come, on a busy machine too: what is requeued, deferred, or whose lease has run out."""
    largest: int = 1 << 20
    """Bytes: the largest body that its publisher takes."""
    wrong_urls: Sequence[str] = ()
    """URLs of its scheme that it cannot use."""
    invalid_names: Sequence[str] = ()
    """Topic names that the framework takes and this broker does not; ``Transport.accept`` refuses them."""
    reachable: bool = True
    """Other processes can use it by its URL."""
    ends_unheard_leases: bool = True
    """A lease runs out on time also while nothing at all is heard on its connection."""
    hands_on_at_once: bool = True
    """At a stop what has not started goes to another worker at once; else behind the calls that run, which hold its queue."""
    counts_what_was_sent: bool = True
    """What was sent when its connection broke counts as settled; else as a lost lease, though the broker may have read it."""
    drops_doubles: bool = False
    """A publish whose answer was lost is sent again by its producer, because the broker drops doubles."""
    fills: bool = False
    """Its nodes can be made ``full``."""
    silence: float = 0.0
    """Seconds after which a connection whose peer fell silent is given up, with URLs made by ``watchful``; 0: never."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[bool, int], Node] = {}

    @abstractmethod
    def make(self, *, brief: bool) -> Node:
        """A node of its own, not up yet; ``brief``: one whose leases are of ``self.brief`` seconds, else of a minute or so."""

    def open(self, urls: Sequence[str]) -> Any:
        """The Transport over ``urls``. As ``workers run`` finds it; override it for one that is not registered."""
        (transport,) = open_transports(urls)
        return transport

    def watchful(self, url: str) -> str:
        """``url`` with options by which silence is noticed within ``silence`` seconds."""
        return url

    def node(self, number: int = 0, *, brief: bool = False) -> Node:
        """The node of that number, up."""
        key = (brief, number)
        if key not in self._nodes:
            node = self.make(brief=brief)
            node.up()
            self._nodes[key] = node
        return self._nodes[key]

    def capabilities(self) -> Capabilities:
        """What its transport declares."""
        found: Capabilities = self.open([self.node().url]).capabilities
        return found

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes.values():
            node.down()
        self._nodes.clear()
