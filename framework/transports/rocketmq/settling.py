"""What a connection says of its deliveries, each one thing after the other: ACKs together, and changes of leases one by one.

It is a part of ``connection``, which knows what is in flight and counts. Source: ``wire.handles``; the traps are in ``delivery``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import Any, Protocol

from gevent import monkey

from framework.errors import FrameworkError
from framework.observe import hublog
from framework.transports.rocketmq import requests
from framework.transports.rocketmq.clock import BrokerClock
from framework.transports.rocketmq.delivery import After, Delivery
from framework.transports.rocketmq.heartbeat import Subscription
from framework.transports.rocketmq.session import Session
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.errors import error_of
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.rocketmq.wire.handles import Handle, batch_body, batch_entry

log = hublog.get(__name__)
_new_lock = monkey.get_original("_thread", "allocate_lock")
SIZE = 400
"""Bytes of a settlement, about."""
MOST_ACKS = 500
"""In one BATCH_ACK_MESSAGE."""
FURTHEST = 4096
"""Offsets that an ACK may lie behind the first of its POP to join a BATCH_ACK_MESSAGE, which has a bit for each between."""
PAUSE = 0.25
"""Seconds before what a broker was too busy to take is said again. It refuses what stood in its queue for three seconds."""


class Books(Protocol):
    """The connection."""

    def sending(self, count: int) -> None:
        """So many settlements wait for the socket now."""

    def settled(self, finished: int, requeued: int) -> None:
        """So many have been handed to the socket. On the hub."""

    def refused(self, finished: int, requeued: int, words: str, id: bytes) -> None:
        """So many that were counted are refused. ``id``: whose it was, where that is one."""

    def postponed(self, finished: int, requeued: int) -> None:
        """So many that were counted are refused for now: they wait again."""

    def answered(self) -> None:
        """All that was said has been answered. On the hub."""

    def broken(self, error: FrameworkError) -> None:
        """An answer will not come."""


class Settling:
    """Of one connection. ``speak()``: have ``collect`` called soon; ``speak_soon()``: in a moment. Both from any thread."""

    def __init__(
        self, session: Session, what: Subscription, lease: float, *, books: Books, speak: Callable[[], None],
        speak_soon: Callable[[], None],
    ) -> None:  # fmt: skip
        self._session, self._what, self._books, self._speak, self._speak_soon = session, what, books, speak, speak_soon
        self._lease = lease
        self.clock = BrokerClock()
        self._batches = True
        """BATCH_ACK_MESSAGE is known there, as far as is known here."""
        self._finished: list[Delivery] = []
        """What is done, not claimed yet: a change of it may be under way."""
        self.finish = self._finished.append
        """``finish(one)`` notes that it is done; whoever says so calls ``speak``. Most messages end here, so they are claimed
        together when they are collected: a lock for each was a tenth of what a message costs."""
        self._acks: list[Delivery] = []
        self._postponed: list[Delivery] = []
        """What the broker was too busy to have acknowledged."""
        self._dead: list[Delivery] = []
        """What goes to ``%DLQ%`` before it is finished."""
        self._changes: list[tuple[Delivery, int, bool, bool]] = []
        """Delivery, milliseconds, whether it ends with that, and whether that has been counted."""
        self._waiting = 0
        """Settlements that wait for the answer to a touch, or for that of ``%DLQ%``."""
        self._unheard = 0
        """Settlements, and repairs, that were sent and not answered."""
        self.late = 0
        """Settlements that could not be said in time. Whoever counts them sets it back."""
        self._claims = _new_lock()
        """Whether a touch is under way is asked by two native threads."""

    @property
    def waits(self) -> int:
        """Settlements that are not with the socket yet."""
        changes = sum(1 for _, _, ends, counted in self._changes if ends and not counted)
        acks = len(self._finished) + len(self._acks) + len(self._postponed)
        return acks + len(self._dead) + self._waiting + changes

    @property
    def idle(self) -> bool:
        """All is said and answered."""
        acks = self._finished or self._acks or self._postponed
        return not (acks or self._dead or self._changes or self._waiting or self._unheard)

    # --- what is to be said --------------------------------------------------------------------------------

    def requeue(self, one: Delivery, delay: float) -> None:
        self._settle(one, After.REQUEUE, round(delay * 1000))

    def terminate(self, one: Delivery) -> None:
        """Its dead letter is stored."""
        self._settle(one, After.GIVE_UP if one.back else After.FINISH, 0)

    def _settle(self, one: Delivery, how: After, delay: int) -> None:
        with self._claims:
            busy = one.busy
            one.after, one.delay = how, delay
            one.busy = True
            self._waiting += busy
        if not busy:
            self._say_after(one)
        self._speak()

    def _say_after(self, one: Delivery) -> None:
        if one.after is After.FINISH:
            self._acks.append(one)
        elif one.after is After.GIVE_UP:
            self._dead.append(one)
        else:
            self._changes.append((one, one.delay, True, False))

    def touch(self, one: Delivery, now: float) -> bool:
        """Whether it is asked for now: one that is under way does as well."""
        with self._claims:
            free = not one.busy
            one.busy = True
        one.touched = now
        if free:
            self._changes.append((one, round(self._lease * 1000), False, False))
        return free

    # --- saying it -----------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Queue the requests. In another native thread too, while the hub is blocked."""
        for one in _taken(self._dead):
            self._waiting += 1
            self._put(Request.CONSUMER_SEND_MSG_BACK, one.back or {}, partial(self._given_up, one))
        if self._postponed:
            self._acknowledge_again()
        finished = self._collect_acks(_taken(self._acks) + self._claimed(_taken(self._finished)))
        requeued = self._collect_changes(_taken(self._changes))
        if finished or requeued:
            self._books.sending(finished + requeued)
            self._session.mark(self, partial(self._books.settled, finished, requeued))

    def _claimed(self, finished: list[Delivery]) -> list[Delivery]:
        """Those of which no change is under way: none is made from now on. The others are said when it has been answered."""
        with self._claims:
            if busy := [one for one in finished if one.busy]:
                finished = [one for one in finished if not one.busy]
                for one in busy:
                    one.after = After.FINISH
                self._waiting += len(busy)
            for one in finished:
                one.busy = True
        return finished

    def _acknowledge_again(self) -> None:
        """What has waited long enough."""
        now = monotonic()
        for one in _taken(self._postponed):
            (self._acks if one.ready <= now else self._postponed).append(one)
        if self._postponed:
            self._speak_soon()

    def _collect_acks(self, acks: list[Delivery]) -> int:
        if not self._batches or len(acks) < 2:
            self._put_each(acks)
            return len(acks)
        together: list[Delivery] = []
        entries: list[dict[str, object]] = []
        for group in _groups(acks):
            if len(together) + len(group) > MOST_ACKS and together:
                self._put_batch(together, entries)
                together, entries = [], []
            start = group[0].first.start
            behind = sorted([one.offset - start for one in group])
            if behind[0] >= 0 and behind[-1] < FURTHEST:
                together += group
                entries.append(batch_entry(group[0].first, behind, self._what.topic, self._what.group))
            else:
                self._put_each(group)
        if together:
            self._put_batch(together, entries)
        return len(acks)

    def _put_each(self, acks: list[Delivery]) -> None:
        for one in acks:
            self._put(Request.ACK_MESSAGE, requests.ack(self._what, one.handle), partial(self._acked, [one]))

    def _put_batch(self, acks: list[Delivery], entries: list[dict[str, object]]) -> None:
        body = batch_body(acks[0].first.broker, entries)
        self._put(Request.BATCH_ACK_MESSAGE, {}, partial(self._acked_together, acks), body)

    def _collect_changes(self, changes: list[tuple[Delivery, int, bool, bool]]) -> int:
        now, counted = monotonic(), 0
        for change in changes:
            one, invisible, ends, known = change
            if one.over:
                continue
            if one.ready > now:
                self._changes.append(change)
                continue
            counted += ends and not known
            fields = requests.change(self._what, one.handle, invisible)
            self._put(
                Request.CHANGE_MESSAGE_INVISIBLETIME, fields, partial(self._changed, one, invisible, ends, asked=now),
                anywhere=not ends,
            )  # fmt: skip
        if self._changes:
            self._speak_soon()
        return counted

    def _put(
        self, code: int, fields: dict[str, str], then: Callable[[Frame | FrameworkError, float], None], body: bytes = b"",
        *, anywhere: bool = False,
    ) -> None:  # fmt: skip
        self._unheard += 1
        self._session.put(self, code, fields, then, body=body, anywhere=anywhere)

    # --- answers -------------------------------------------------------------------------------------------

    def _acked(self, acks: list[Delivery], answer: Frame | FrameworkError, at: float) -> None:
        self._unheard -= 1
        if isinstance(answer, FrameworkError):
            self._books.broken(answer)
        elif answer.code != Answer.SUCCESS:
            again = [one for one in acks if self._is_postponed(one, answer)]
            self._postponed += again
            if again:
                self._books.postponed(len(again), 0)
                self._speak_soon()
            if len(again) < len(acks):
                self._books.refused(len(acks) - len(again), 0, str(error_of(answer)), acks[0].id if len(acks) == 1 else b"")
        self._look_if_idle()

    def _is_postponed(self, one: Delivery, answer: Frame) -> bool:
        """The broker has not even looked at it, and its lease lasts."""
        now = monotonic()
        if answer.code != Answer.SYSTEM_BUSY or now + PAUSE - one.began >= self._lease:
            return False
        one.heard = now + PAUSE
        return True

    def _given_up(self, one: Delivery, answer: Frame | FrameworkError, at: float) -> None:
        self._unheard -= 1
        if isinstance(answer, FrameworkError):
            self._books.broken(answer)
            return
        if answer.code != Answer.SUCCESS:
            log.warning("message %s is not in %%DLQ%%%s: %s", one.id.decode(), self._what.group, error_of(answer))
        one.after = After.FINISH
        self._say_now(one)

    def _acked_together(self, acks: list[Delivery], answer: Frame | FrameworkError, at: float) -> None:
        if isinstance(answer, Frame) and answer.code == Answer.REQUEST_CODE_NOT_SUPPORTED:
            self._unheard -= 1
            self._batches = False
            self._put_each(acks)
            return
        self._acked(acks, answer, at)

    def _changed(
        self, one: Delivery, invisible: int, ends: bool, answer: Frame | FrameworkError, at: float, *, asked: float
    ) -> None:
        """Of a touch in any thread, while the hub stands."""
        self._unheard -= 1
        if isinstance(answer, FrameworkError):
            self._books.broken(answer)
            return
        if answer.code != Answer.SUCCESS:
            self._not_changed(one, invisible, ends, answer)
            return
        said = requests.Changed.of(answer.fields)
        apart = one.changed(*said, began=self.clock.at(said.pop_time, at, asked), heard=at)
        if not apart:
            self._changes.append((one, invisible, ends, True))
            self._speak_soon()
        elif ends:
            self._look_if_idle()
        else:
            self._free(one)

    def _look_if_idle(self) -> None:
        """Whoever closes waits for that."""
        if self.idle:
            self._books.answered()

    def _not_changed(self, one: Delivery, invisible: int, ends: bool, answer: Frame) -> None:
        if ends and self._is_postponed(one, answer):
            self._books.postponed(0, 1)
            self._changes.append((one, invisible, True, False))
            self._speak_soon()
        elif ends:
            self._books.refused(0, 1, str(error_of(answer)), one.id)
            self._look_if_idle()
        else:  # its lease goes on as it was
            self._free(one)

    def _free(self, one: Delivery) -> None:
        """The change that was under way is over: what comes after it is said now, if it is still ours."""
        with self._claims:
            after = one.after
            one.busy = after is not After.NOTHING
        if after is After.NOTHING:
            return
        self._say_now(one)

    def _say_now(self, one: Delivery) -> None:
        """It waited; if it is still ours it is said."""
        self._waiting -= 1
        if monotonic() - one.began >= self._lease:
            one.over = True
            self.late += 1
        else:
            self._say_after(one)
        self._speak()

    # --- the end -------------------------------------------------------------------------------------------

    def drop(self) -> int:
        """How many settlements were never handed to the socket; nothing more is said."""
        lost = self.waits + self.late
        self._finished.clear()
        self._acks.clear()
        self._postponed.clear()
        self._dead.clear()
        self._changes.clear()
        self._waiting = self._unheard = self.late = 0
        return lost


def _groups(acks: list[Delivery]) -> Iterable[list[Delivery]]:
    """Those of the same POP and queue together. They mostly follow each other."""
    found: dict[int, list[Delivery]] = {}
    last: Handle | None = None
    group: list[Delivery] = []
    for one in acks:
        if one.first is not last:
            last = one.first
            group = found.setdefault(id(last), [])
        group.append(one)
    return found.values()


def _taken(waiting: list[Any]) -> list[Any]:
    """All of it, from a list to which the hub may be adding: each step is one that nothing interrupts."""
    count = len(waiting)
    some = waiting[:count]
    del waiting[:count]
    return some
