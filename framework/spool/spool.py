"""The spool: lands batches of messages durably, once each, so that they may be finished at the broker.

A spool is a folder, on a mounted file system or in a storage: a file ``epoch`` with a UUID that says which life of the spool
this is, and a folder of segments for each collector, with one of its own. It does not talk to a broker, and reading for Spark is
``framework/spark``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import gevent
import gevent.hub
import gevent.lock
import gevent.monkey

from framework.errors import WrongUse
from framework.spool import files, runs, times
from framework.spool import segment as segments
from framework.spool.arrow import SpoolError
from framework.spool.expiry import Expiry
from framework.spool.faults import words_of
from framework.spool.leases import lease_of, over
from framework.spool.limit import Limit, to_keep
from framework.spool.root import COLLECTOR, EPOCH, check_exclusive, ensure_epoch, epoch, root_of
from framework.spool.seen import REMEMBER, WINDOW, Key, Seen, key_of, node_id_of
from framework.spool.storage import Location, Remote
from framework.spool.told import AFTER, BEGINS, number_of, tell, told
from framework.spool.told import REMEMBER as REMEMBER_FILE

if TYPE_CHECKING:
    from framework.message import Batch, Message

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_LEASES = 3
_COMPACTING = 1.0
"""Seconds for which a batch may join small segments of before."""
_UNFINISHED_FOR = 3600.0
"""Seconds after which a file that another collector began is taken for a dead one's."""
SEGMENT_BYTES = 64 * 1024 * 1024
"""The most bytes of bodies in one segment, unless one body alone is larger."""


class Spool:
    """One collector's place in the spool ``folder``: a path, or a URL such as ``s3://bucket/orders``.

    Nothing is touched until the first ``land`` or ``open``, so that a module that makes one can be imported
    anywhere. Safe to share between greenlets and threads. A collector is one process at a time, unless all of them say
    ``shared``: then any number of processes, on all hosts that have the folder, land each message once. Where the spool is a URL
    they always do.

    ``retention``: seconds after which a segment is deleted, read or not; None keeps them all. What came before a pause that is
    longer stays for as long again: the clock may have been set. ``window``: how many message ids are remembered at the least, to
    drop what the broker delivers again; the segments that hold them stay. So do those of the last ``remember`` seconds, or of
    three times the longest lease of its connections where that is longer.
    ``max_bytes``: a spool that holds as much takes nothing more until some is deleted; of what was read no more than half as much
    is kept for the ids. None for no limit. ``node_ids``: each nsqd has a ``--node-id`` of its own, so that its messages are known
    also where they come again from another address.

    Raises WrongUse for a URL that no spool can lie in, or whose library is missing, a bad collector name, retention or limit.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | Remote, collector: str = "main", *, retention: float | None = None,
        window: int = WINDOW, remember: float = REMEMBER, max_bytes: int | None = None, shared: bool = False,
        node_ids: bool = False,
    ) -> None:  # fmt: skip
        if not COLLECTOR.fullmatch(collector) or collector == EPOCH:
            raise WrongUse(f"collector name {collector!r} is not valid: use 1 to 64 of the characters a-z A-Z 0-9 . _ -")
        if retention is not None and not retention > 0:
            raise WrongUse(f"Spool(retention={retention!r}): seconds above 0 are needed, or None to keep everything")
        if not 0 <= remember < float("inf"):
            raise WrongUse(f"Spool(remember={remember!r}): a number of seconds is needed, 0 for none beyond the window")
        self.root = root_of(folder)
        self.folder = self.root / collector
        self._limit = Limit(self.folder, max_bytes)
        self._by_node = not node_ids
        self._expiry = None if retention is None else Expiry(self.folder, retention)
        self._expire_at = 0.0
        self._compacted = -1
        self._joining: dict[Location, Any] = {}
        """What was read to be joined."""
        self._window = window
        # A storage has no lock that ends with its holder. None is needed where each number is taken exclusively: what a collector
        # that was paused puts under a number that the others have gone past is refused.
        self._shared = shared or not isinstance(self.root, Path)
        self._is_open = False
        self._lock_file: int | None = None
        self._life = ""
        """The epoch of the spool when it was opened."""
        self._folder_life = ""
        self._next = 1
        """Where the search for a free number begins: behind the newest, once something was landed. A number that was
        given away is not given again as long as anything is there that tells of it, or who gave it lives."""
        self._notes: times.Notes | None = None
        """Where others write as well, what they note in a folder."""
        self._remember = remember
        self._seen = Seen(window, remember)
        self._since = 0.0
        """The clock that dates segments, as it was when the monotonic one began."""
        self._here: Any = gevent.monkey.get_original("threading", "local")()  # what each native thread has for itself
        self._mutex: Any = gevent.monkey.get_original("threading", "Lock")()  # shared with the pool's native threads

    def land(self, batch: Batch) -> int:
        """Make the batch's messages durable and return how many rows that were new; 0 when all are here already.

        When it returns, every message of the batch may be finished. On a hub the waiting for the disk is done in its
        threadpool, so heartbeats and other handlers go on. Raises SpoolError (a full disk: nothing was landed, let
        the batch be requeued), SpoolFull (``max_bytes``: nothing was landed, and the handler pauses) and WrongUse
        (another process is this collector).
        """
        return self._off_hub(lambda: self._land(batch))

    def open(self) -> None:
        """Take the collector's lock and learn the ids of the kept segments; ``land`` does this by itself."""
        self._off_hub(self._open_once)

    def close(self) -> None:
        """Give the lock back. The next ``land`` opens again."""
        with self._mutex:
            self._forget()
            self._life = ""

    def __enter__(self) -> Spool:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _off_hub(self, work: Callable[[], _T]) -> _T:
        here = gevent.getcurrent()
        if not isinstance(here.parent, gevent.hub.Hub):
            return work()
        # So that many handlers wait here and do not fill the pool, which also resolves names. One for each hub: gevent's
        # semaphore may lose the wake-up of a waiter on another thread's hub.
        committing = self._here.__dict__.setdefault("committing", gevent.lock.BoundedSemaphore(1))
        with committing:
            result, error = here.parent.threadpool.apply(_outcome, (work,))
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def _open_once(self) -> None:
        with self._mutex:
            self._ensure_open()

    def _land(self, batch: Batch) -> int:
        with self._mutex:
            self._ensure_open()
            try:
                self._heed_leases(batch)
                self._catch_up()
                self._check_ours(batch)
                new = self._new(batch)
                if new:
                    self._limit.check()
                rows = sum(self._write({key: new[key] for key in keys}) for keys in _by_size(new))
            except OSError as error:
                # After a failed sync only the disk knows what is there: forget, and learn it anew.
                self._forget()
                raise SpoolError(f"spool {self.folder}: {len(batch)} messages could not be written: {words_of(error)}") from error
            self._expire()
            self._compact()
            return rows

    def _write(self, new: dict[Key, Message]) -> int:
        # Who shares takes the number behind all that it knows, or none: so nobody names a segment without knowing the ids in
        # every one before. A message that two of them have at once is landed by whoever is first, however long the other pauses.
        while new:
            landed = segments.write(self.folder, self._next, segments.table_of(list(new.values())), only=self._shared)
            if landed is not None:
                self._limit.add(landed)
                self._next = landed.number + 1
                self._seen.update(new, self._clock())
                break
            taken = self._next
            self._catch_up()
            if self._next == taken:
                raise self._puzzled(f"the number {taken} is taken, and there is no segment of it: remove what has its name")
            new = {key: message for key, message in new.items() if key not in self._seen}
            if new:  # else each of those who share could pass it by a batch
                self._limit.check()
        return len(new)

    def _heed_leases(self, batch: Batch) -> None:
        """A message whose finish was lost comes again when its lease is over, and the ids must be known by then."""
        connections = {id(message.connection): message.connection for message in batch}
        longest = _LEASES * max((lease_of(one) for one in connections.values()), default=0.0)
        if self._remember and longest > self._remember:
            self._remember = self._seen.seconds = longest
            tell(self.folder, REMEMBER_FILE, round(longest))

    def _check_ours(self, batch: Batch) -> None:
        """Whoever was away for long may hold what others have landed since, and what a query has read and deleted: nobody knows
        the ids. Within its lease a message is nobody else's, and what others had of it before is still remembered. Looked at
        behind ``_catch_up``, as a pause may come at any moment."""
        if self._shared and (count := over(batch)):
            raise SpoolError(
                f"spool {self.folder}: the leases of {count} of {len(batch)} messages are over, so that others may have landed "
                "them: none of the batch is landed, and it comes again"
            )

    def _begin_to_remember(self) -> None:
        # Not less than was said before: by one who shares, or because of a lease that is known only when a message comes.
        if self._remember:
            self._remember = max(self._remember, told(self.folder, REMEMBER_FILE) or 0)
        tell(self.folder, REMEMBER_FILE, round(self._remember) or None)

    def _catch_up(self) -> None:
        """Learn what the others who share have landed since."""
        if not self._shared:
            return
        fresh, taken, there = segments.behind(self.folder, self._next, self._notes)
        if there < self._next - 1:  # a person removed the newest, and perhaps all: others may have begun anew
            self._forget()
            self._ensure_open()
            return
        expected = self._next
        for one in fresh:
            if one.begins > expected:
                raise self._puzzled(
                    f"segments {expected} to {one.begins - 1} were landed by others, and deleted, since this collector last "
                    "looked, so it does not know their ids: this batch comes again, and what is in them does not"
                )
            expected = one.number + 1
        now = self._clock()
        self._know([(one, now) for one in fresh])
        for one in fresh:
            self._limit.add(one)
        if fresh:
            # Whoever named them may not have got to this yet, and what is known here is finished at the broker.
            segments.sync_folder(self.folder)
        self._next = taken + 1

    def _puzzled(self, why: str) -> SpoolError:
        self._forget()
        return SpoolError(f"spool {self.folder}: {why}")

    def _expire(self) -> None:
        if self._expiry is None or time.monotonic() < self._expire_at:
            return
        self._expire_at = time.monotonic() + min(60.0, self._expiry.retention / 10)
        try:
            if expired := self._expiry.of(segments.listing(self.folder)):
                segments.trim(self.folder, expired[-1].number + 1, self._window, to_keep(self.folder), self._remember)
        except OSError as error:  # what was landed is durable all the same; the next round tries again
            _log.warning("spool %s: expired segments were not deleted: %s", self.folder, error)

    def _compact(self) -> None:
        """Have few files where batches are small: looked at whenever a block of numbers is full, and at the beginning."""
        block = self._next // runs.BLOCK
        if block in (0, 1, self._compacted):  # the newest two stay as they are
            return
        try:
            if not segments.compact(self.folder, _COMPACTING, self._joining):
                return  # the next batch goes on
            if isinstance(self.folder, Path):
                times.tidy(self.folder, segments.listing(self.folder))
        except (OSError, SpoolError) as error:  # what was landed is durable all the same; the next block tries again
            _log.warning("spool %s: small segments were not joined: %s", self.folder, error)
        self._compacted = block

    def _new(self, batch: Batch) -> dict[Key, Message]:
        new: dict[Key, Message] = {}
        if not self._by_node:
            self._check_nodes(batch)
        for message in batch:
            lasting = message.connection.lasting_ids
            key = key_of(message.node if self._by_node else "", message.topic, message.id, message.timestamp, lasting=lasting)
            if key not in self._seen:
                new.setdefault(key, message)
        return new

    def _check_nodes(self, batch: Batch) -> None:
        """Two that give out the same ids would be told apart by the nanosecond alone."""
        nodes: dict[int, str] = {}
        for message in batch:
            number = node_id_of(message.id)
            if number is not None and nodes.setdefault(number, message.node) != message.node:
                raise SpoolError(
                    f"spool {self.folder}: nsqd {nodes[number]} and nsqd {message.node} have the same --node-id, {number}: give "
                    "each one of its own, or leave node_ids out"
                )

    def _ensure_open(self) -> None:
        if self._is_open and (self._lock_file is None or files.is_lock_of(self._lock_file, self.folder)):
            return
        emptied = self._is_open
        self._forget()
        try:
            life = ensure_epoch(self.root)
            if life != self._life:
                self._life, self._next = life, 1
            self._enter(life)
            # A collector killed between the link and this sync left a name that a power cut may still take; its
            # messages come again and will be dropped as known, so the name must be durable first.
            segments.sync_folder(self.folder)
            self._limit.begin()
            self._begin_to_remember()
            self._learn(emptied)
            if self._shared:  # others may have named more since
                segments.sync_folder(self.folder)
            self._is_open = True
        except OSError as error:
            self._forget()
            raise SpoolError(f"spool {self.folder}: cannot be opened: {words_of(error)}") from error
        except BaseException:
            self._forget()
            raise

    def _enter(self, life: str) -> None:
        if isinstance(self.root, Remote):
            check_exclusive(self.root, life)
            self._begin_life()
        if isinstance(self.folder, Path):
            self.folder.mkdir(exist_ok=True)
            self._lock_file = files.locked(self.folder, self._shared)
            files.recover(self.folder, _UNFINISHED_FOR if self._shared else 0.0)
            self._begin_life()
            segments.sync_folder(self.root)

    def _begin_life(self) -> None:
        """Of the folder: by it a query tells one that was emptied from one that went on."""
        if self._next > 1 and epoch(self.folder) is None:
            tell(self.folder, AFTER, number_of(self._folder_life))
            tell(self.folder, BEGINS, self._next)
        self._folder_life = ensure_epoch(self.folder)

    def _learn(self, emptied: bool) -> None:
        if self._expiry is not None:
            self._expiry.forget()
        self._since = time.time() - time.monotonic()
        self._notes = times.Notes(self.folder) if isinstance(self.folder, Path) else None
        taken = segments.highest(self.folder)  # before the list, which has what others name from now on
        kept = segments.steady(self.folder, anew=True)
        self._seen = Seen(self._window, self._remember)
        self._know([(one, segments.landed_at(one)) for one in segments.newest(kept, self._window, self._remember)])
        behind = 1 + max(taken, kept[-1].number if kept else 0)
        # With the others who began anew there, so that there is no gap; else a query goes on with what comes now.
        self._next = behind if emptied and behind > 1 else max(self._next, behind)
        if isinstance(self.folder, Path):
            times.tidy(self.folder, kept)

    def _clock(self) -> float:
        """In seconds since 1970, as if nobody had set it since the ids were learnt: nothing is forgotten for that."""
        return self._since + time.monotonic()

    def _know(self, some: Sequence[tuple[segments.Segment, float]]) -> None:
        """The ids in ``some``, of which each comes with when it was landed."""
        gone = []
        for one, at in some:
            try:
                self._seen.update(segments.keys(one.path, by_node=self._by_node), at)
            except FileNotFoundError:
                gone.append(one)
        if not gone:
            return
        # A reader that has committed them deleted them just now, or another collector has joined them.
        for run in segments.joined(self.folder, gone[0].begins, gone[-1].number):
            with suppress(FileNotFoundError):
                self._seen.update(segments.keys(run.path, by_node=self._by_node), segments.landed_at(run))

    def _forget(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
        self._lock_file, self._is_open = None, False
        self._joining.clear()
        self._seen = Seen(self._window, self._remember)


def _outcome(work: Callable[[], _T]) -> tuple[_T | None, BaseException | None]:
    # The pool would print a raised error's traceback as well as raise it; the caller's log line is enough.
    try:
        return work(), None
    except BaseException as error:
        return None, error


def _by_size(new: dict[Key, Message]) -> Iterator[list[Key]]:
    """The keys in runs whose bodies fit one segment: Arrow's binary column ends at 2 GiB, and a reader maps whole segments."""
    run: list[Key] = []
    size = 0
    for key, message in new.items():
        if run and size + len(message.body) > SEGMENT_BYTES:
            yield run
            run, size = [], 0
        run.append(key)
        size += len(message.body)
    if run:
        yield run
