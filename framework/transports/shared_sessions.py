"""The sessions of a transport that are shared: one for each server and hub, dialled when it is needed, closed when it is used no
more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from gevent import monkey
from gevent.lock import Semaphore

_get_ident = monkey.get_original("_thread", "get_ident")


class Shared(Protocol):
    """A session, on the hub that dialled it."""

    leaving: bool
    """Whoever can shall use another one."""

    @property
    def error(self) -> Exception | None:
        """Why it has ended."""

    def close(self) -> None: ...


_S = TypeVar("_S", bound=Shared)


class SharedSessions(Generic[_S]):
    """``with sessions.use(server) as session``. A hub has its own; those of other hubs are left alone."""

    def __init__(self, dial: Callable[[str, _S | None], _S]) -> None:
        """``dial(server, last)`` blocks; ``last`` is the session that the new one takes the place of."""
        self._dial = dial
        self._open: dict[tuple[str, int], _S] = {}
        self._users: dict[_S, int] = {}
        self._dialling: dict[tuple[str, int], Semaphore] = {}

    @contextmanager
    def use(self, server: str) -> Iterator[_S]:
        """That of this hub; blocks while it is dialled. Raises what ``dial`` does."""
        session = self.take(server)
        try:
            yield session
        finally:
            self.give_back(session)

    def take(self, server: str) -> _S:
        """As ``use``, until ``give_back``."""
        key = (server, _get_ident())
        with self._dialling.setdefault(key, Semaphore()):
            session = self._open.get(key)
            if session is None or session.error is not None or session.leaving:
                session = self._open[key] = self._dial(server, session)
            self._users[session] = self._users.get(session, 0) + 1
            return session

    def give_back(self, session: _S) -> None:
        """The last one closes it."""
        left = self._users.pop(session, 1) - 1
        if left:
            self._users[session] = left
            return
        for key in [key for key, one in self._open.items() if one is session]:
            del self._open[key]
        session.close()

    def close(self) -> None:
        """Those of this hub."""
        for (_, thread), session in list(self._open.items()):
            if thread == _get_ident():
                session.close()
