"""The folder's own clock, by which deferred messages are due. It goes on from where it was, whatever the wall clock says.

The rule, for a wall clock that may be years off, or be set while nothing runs:
- While the process lives, the clock follows the monotonic one: setting the wall clock moves nothing.
- At a start it goes on from what it was, plus the time that passed since. On the same boot of the machine the kernel knows that
  exactly. After another boot it is the difference of the wall clock, unless that went back, or ahead by more than
  CREDIBLE_SECONDS: then nothing is counted as passed.
So a message never waits longer than what was left of its delay, and it comes too early only by as much as the wall clock was set
ahead between two boots, within what is credible. Where the clock's file is lost, it is the wall clock; and whatever is read,
nothing that waits across a restart waits longer than --max-req-timeout (``framework.nsqd.channel``).
Messages bear the wall clock's time. So where that was set ahead, those from before look older than they are: ``set_ahead`` says
when, and they are that old at the least (``framework.nsqd.expiry``).
"""

from __future__ import annotations

import math
import os
import time
import zlib
from pathlib import Path

import msgspec

from framework.decoding import prepared
from framework.nsqd.store.files import FILE_MODE

CREDIBLE_SECONDS = 30 * 86_400
_STEP_MS = 1000
"""What the wall clock gains on the kernel's by less was not set."""
_KEPT_SECONDS = 600.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@prepared
class Anchor(msgspec.Struct, frozen=True):
    """One moment, by all clocks; in ms."""

    ours: int
    wall: int
    boot: str
    """Which boot of the machine; empty where that is not known."""
    up: int
    """Since that boot, sleep included."""
    set_ahead: int = 0
    """When the wall clock was last set ahead, in ms of ours."""


class Clock:
    """Milliseconds that only go forward, near those since 1970."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found = _load(path)
        self._start = _wall() if found is None else found.ours + _passed(found)
        self._began = time.monotonic()
        self._kept = -math.inf
        self._lead = _lead()
        self._set_ahead = 0 if found is None else self._start if _was_set_ahead(found) else found.set_ahead

    def now(self) -> float:
        """For the due times of messages, and for nothing that is shown."""
        return self._start + (time.monotonic() - self._began) * 1000

    def set_ahead(self) -> int:
        """When the wall clock was last set ahead, in ms of this clock, as far as it can be known; to be asked now and then."""
        lead, before = _lead(), self._lead
        self._lead = lead
        if lead - before > _STEP_MS:
            self._set_ahead = int(self.now())
            self._kept = -math.inf  # to be kept soon
        return self._set_ahead

    def wall(self, due: float) -> float:
        """A due time of this clock, by the wall clock as it is now."""
        return due + _wall() - self.now()

    def keep(self) -> None:
        """Have the next start go on from here. Where the disk is full it goes on from what was kept before."""
        self.set_ahead()
        self._kept = time.monotonic()
        said = msgspec.json.encode(Anchor(int(self.now()), _wall(), *_boot(), self._set_ahead))
        fresh = self._path.with_suffix(".new")
        try:
            with open(fresh, "wb", opener=lambda path, flags: os.open(path, flags, FILE_MODE)) as file:
                file.write(b"%08x %s" % (zlib.crc32(said), said))
            fresh.replace(self._path)
        except OSError:
            fresh.unlink(missing_ok=True)

    @property
    def is_to_be_kept(self) -> bool:
        """Whether the last ``keep`` was long ago."""
        return time.monotonic() - self._kept > _KEPT_SECONDS


def _load(path: Path) -> Anchor | None:
    try:
        crc, _, said = path.read_bytes().partition(b" ")
        return msgspec.json.decode(said, type=Anchor) if int(crc, 16) == zlib.crc32(said) else None
    except (OSError, ValueError):
        return None


def _passed(since: Anchor) -> int:
    boot, up = _boot()
    passed = up - since.up if boot and boot == since.boot else _wall() - since.wall
    return max(passed, 0) if passed <= CREDIBLE_SECONDS * 1000 else 0


def _was_set_ahead(since: Anchor) -> bool:
    boot, up = _boot()
    if boot and boot == since.boot:
        return _wall() - up - (since.wall - since.up) > _STEP_MS
    return _wall() - since.wall > CREDIBLE_SECONDS * 1000


def _lead() -> int:
    """How far the wall clock is before the kernel's, which nobody sets."""
    boot, up = _boot()
    return _wall() - (up if boot else int(time.monotonic() * 1000))


def _wall() -> int:
    return time.time_ns() // 1_000_000


def _boot() -> tuple[str, int]:
    try:
        return _BOOT.read_text().strip(), time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    except (OSError, AttributeError):  # not Linux
        return "", 0
