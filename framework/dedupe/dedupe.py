"""Middleware that skips messages which were handled before. Where their keys are kept is the store's matter."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any

from framework.dedupe.sqlite import SqliteStore
from framework.dedupe.store import Claim, KeyStore, MemoryStore
from framework.errors import Backoff, BadHandler, HandlerTimeout, Retry, Skip
from framework.headers import KEY, Headers
from framework.hooks import Middleware
from framework.message import Batch, Message
from framework.middleware.retry import describe
from framework.observe import hublog

AGE = 86_400.0
"""Seconds for which a key is kept."""
MOST = 100_000
"""Keys that are kept in memory; about 200 bytes each."""
MARGIN = 5.0
"""Seconds that a claim lasts longer than its call may take."""
UNKNOWN = 300.0
"""Seconds that a claim lasts where nobody says how long the call may take."""
log = hublog.get(__name__)
_CLAIMS = ("new", "done", "claimed")
_DONE, _CLAIMED = "it was handled before", "another call has a message with the same key"


class StoreFails(Backoff, Retry):
    """Nobody can say whether the message was handled. That it waits uses up no attempt, and its handler pauses."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.count = False


class Dedupe(Middleware):
    """Skips a message when one with the same key has been handled: it is finished, without its handler.

    ``store``: where keys are kept. None is the memory of the process. A path is a file of SQLite, for all processes of this
    machine. Or a ``KeyStore`` of your own. ``age``: seconds for which a key is kept, a day by default. ``most``: how many are
    kept in memory, 100,000 by default. ``header``: the header that has a message's key, in whatever case;
    a message without it is known by its node, topic and id. ``wait``: seconds after which a message comes again when another
    call has one with its key.

    A call that raises is not remembered. Raises BadHandler for an argument that cannot be.
    """

    def __init__(
        self, store: KeyStore | str | os.PathLike[str] | None = None, *, age: float | None = None, most: int | None = None,
        header: str = KEY, wait: float = 1.0,
    ) -> None:  # fmt: skip
        self._store = _made(store, age, most)
        self._header = _checked_header(header)
        self._wait = _seconds("wait", wait)

    def start(self) -> None:
        if isinstance(self._store, SqliteStore):
            self._store.open()

    def stop(self) -> None:
        if isinstance(self._store, SqliteStore):
            self._store.close()

    def around(self, job: Any, call: Callable[[], None], /) -> None:
        if isinstance(job, Batch):
            self._around_batch(job, call)
        else:
            self._around_one(job, call)

    def _around_one(self, message: Message, call: Callable[[], None]) -> None:
        keys, token = [self._key_of(message)], token_hex(8)
        (claim,) = self._claims(keys, token, message)
        if claim == "done":
            raise Skip(_DONE)
        if claim != "new":
            raise Retry(_CLAIMED, delay=self._wait, count=False)
        try:
            call()
        except Skip:  # which finishes it
            self._tell(self._store.done, keys, token)
            raise
        except BaseException:
            self._tell(self._store.release, keys, token)
            raise
        self._tell(self._store.done, keys, token)

    def _around_batch(self, batch: Batch[Any], call: Callable[[], None]) -> None:
        first: dict[str, Message] = {}
        for message in batch.messages:
            if message not in batch.outcomes and first.setdefault(self._key_of(message), message) is not message:
                batch.fail(message, Retry(_CLAIMED, delay=self._wait, count=False))
        keys, token = list(first), token_hex(8)
        mine: dict[str, Message] = {}
        for key, claim in zip(keys, self._claims(keys, token, batch.messages[0]) if keys else (), strict=True):
            if claim == "new":
                mine[key] = first[key]
            elif claim == "done":
                batch.skip(first[key])
            else:
                batch.fail(first[key], Retry(_CLAIMED, delay=self._wait, count=False))
        try:
            call()
        except BaseException as error:
            self._settle(batch, mine, token, isinstance(error, Skip))
            raise
        self._settle(batch, mine, token, True)

    def _settle(self, batch: Batch[Any], mine: dict[str, Message], token: str, handled: bool) -> None:
        """``handled``: what became of those that the handler has not judged one by one."""
        judged = {key: batch.outcomes.get(message) for key, message in mine.items()}
        done = [key for key, outcome in judged.items() if isinstance(outcome, Skip) or (outcome is None and handled)]
        failed = [key for key in mine if key not in set(done)]
        if done:
            self._tell(self._store.done, done, token)
        if failed:
            self._tell(self._store.release, failed, token)

    def _claims(self, keys: Sequence[str], token: str, message: Message) -> Sequence[Claim]:
        left = message.seconds_left
        try:
            return _answered(self._store.claim(keys, token, UNKNOWN if left == math.inf else max(0.0, left) + MARGIN), keys)
        except BaseException as error:  # the time limit as well: the store may have heard, and the answer is not known
            self._tell(self._store.release, keys, token)
            if not isinstance(error, Exception | HandlerTimeout):
                raise
            log.warning("Dedupe: claim of %d keys (%.100s) failed: %s", len(keys), keys[0], describe(error))
            raise StoreFails(f"Dedupe cannot ask its store: {describe(error)}") from error

    def _tell(self, verb: Callable[[Sequence[str], str], None], keys: Sequence[str], token: str) -> None:
        """The call is over: what the store raises changes no message's outcome any more, and no more does a time limit that ends
        the wait for it."""
        try:
            verb(keys, token)
        except (Exception, HandlerTimeout):
            words = "Dedupe: %s of %d keys (%.100s) failed: a repeat may be handled again, or waits until the claim is over"
            log.warning(words, verb.__name__, len(keys), keys[0], exc_info=True)

    def _key_of(self, message: Message) -> str:
        """Of one handler only: another channel is to handle it too."""
        given = _found(message.headers, self._header) if message.headers else None
        where = f"{message.topic}/{message.channel}"
        if given:
            return f"{where} key {given}" if _is_text(given) else f"{where} raw {given.encode(errors='surrogatepass').hex()}"
        lasting = message.connection.lasting_ids
        number = message.id.decode(errors="backslashreplace")
        return f"{where} id {message.node} {number}" if lasting else f"{where} id {message.node} {number} {message.timestamp}"


def _answered(claims: Sequence[Claim], keys: Sequence[str]) -> Sequence[Claim]:
    if len(claims) != len(keys):
        raise BadHandler(f"its claim() is to answer once for each key, and answered {len(claims)} times for {len(keys)} keys")
    for claim in claims:
        if claim not in _CLAIMS:
            raise BadHandler(f"its claim() is to answer 'new', 'done' or 'claimed' for each key, and answered {claim!r:.100}")
    return claims


def _is_text(given: str) -> bool:
    """Not where a header had bytes that are no UTF-8, which no store could keep as they are."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def _found(headers: Headers, name: str) -> str | None:
    if name in headers:
        return headers[name]
    return next((value for given, value in headers.items() if given.lower() == name), None)


# -- checking


def _made(store: Any, age: float | None, most: int | None) -> KeyStore:
    if store is None:
        return MemoryStore(AGE if age is None else _seconds("age", age), MOST if most is None else _count(most))
    if most is not None:
        raise BadHandler(f"Dedupe(most={most!r}) is for keys in memory: leave it out, or leave the store out")
    if isinstance(store, str | os.PathLike):
        if not os.fspath(store):
            raise BadHandler("Dedupe(''): give the path of a file, or nothing for keys in memory")
        return SqliteStore(store, AGE if age is None else _seconds("age", age))
    if isinstance(store, type):
        raise BadHandler(f"Dedupe({store.__qualname__}): a store is an object, and this is a class: write {store.__qualname__}()")
    for name in ("claim", "done", "release"):
        if not callable(getattr(store, name, None)):
            raise BadHandler(f"Dedupe({store!r:.100}): a store has the methods claim, done and release, and this has no {name}")
    if age is not None:
        raise BadHandler(f"Dedupe(age={age!r}): how long a store of your own keeps keys is its own matter: leave age out")
    return store  # type: ignore[no-any-return]


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise BadHandler(f"Dedupe({name}={value!r}): give seconds, more than 0")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadHandler(f"Dedupe(most={value!r}): give a whole number of keys, at least 1")
    return value


def _checked_header(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise BadHandler(f"Dedupe(header={name!r}): give the name of a header")
    return name.strip().lower()
