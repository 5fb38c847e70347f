"""The locks of a patched process: they exclude, they wake, and nobody waits for ever, between greenlets and between threads."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time

import gevent
import pytest

from framework import locks
from framework.locks import Lock


class Census:
    """How many are inside at once."""

    def __init__(self) -> None:
        self.inside = self.most = self.entered = 0

    def enter(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered += 1

    def leave(self) -> None:
        self.inside -= 1


def in_turns(lock: Lock, census: Census, times: int, pause) -> None:
    for _ in range(times):
        with lock:
            census.enter()
            pause(random.random() * 0.002)
            census.leave()


def test_greenlets_and_native_threads_with_and_without_a_hub_exclude_each_other_and_all_get_through():
    lock, census = Lock(), Census()
    threads = [threading.Thread(target=in_turns, args=(lock, census, 40, pause)) for pause in [time.sleep, gevent.sleep] * 3]
    for thread in threads:
        thread.start()
    greenlets = [gevent.spawn(in_turns, lock, census, 40, gevent.sleep) for _ in range(6)]
    gevent.joinall(greenlets, timeout=60)
    while any(thread.is_alive() for thread in threads):
        gevent.sleep(0.01)
    assert census.entered == 12 * 40
    assert census.most == 1


def test_who_waits_lets_the_hub_turn():
    lock = Lock()
    lock.acquire()
    waiting = gevent.spawn(lock.acquire)
    gevent.sleep(0)
    assert not waiting.ready()
    lock.release()
    assert waiting.get(timeout=10) is True


def test_a_wait_that_is_given_up_leaves_the_lock_to_the_next():
    lock = Lock()
    lock.acquire()
    first, second = gevent.spawn(lock.acquire), gevent.spawn(lock.acquire)
    gevent.sleep(0)
    lock.release()  # rings for the first
    first.kill()
    assert second.get(timeout=10) is True
    assert not lock._waiting


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_a_timeout_ends_the_wait(timeout):
    lock = Lock()
    lock.acquire()
    assert lock.acquire(timeout=timeout) is False
    assert lock.acquire(blocking=False) is False
    assert lock.locked()
    assert not lock._waiting
    lock.release()
    assert lock.acquire(timeout=1) is True


def test_wrong_timeouts_are_refused_as_threading_does():
    lock = Lock()
    lock.acquire()
    with pytest.raises(ValueError, match="non-negative"):
        lock.acquire(timeout=-2)
    with pytest.raises(ValueError, match="non-blocking"):
        lock.acquire(False, 1)
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_callback_of_the_hub_waits_for_another_thread_but_not_for_ever(monkeypatch):
    monkeypatch.setattr(locks, "HUB_PATIENCE", 0.05)
    lock, outcomes = Lock(), []
    lock.acquire()

    def callback():
        try:
            outcomes.append(lock.acquire())
        except RuntimeError as error:
            outcomes.append(str(error))

    gevent.get_hub().loop.run_callback(callback)
    gevent.sleep(0.01)
    assert "a lock that a greenlet of its thread may hold" in outcomes[0]


PATCHED = """
from framework.cli.patching import patch; patch()
import logging, queue, sys, threading, time
import gevent
from gevent import monkey

start = monkey.get_original("_thread", "start_new_thread")
logging.basicConfig(stream=open("/dev/null", "w"))
log, lock, event, line = logging.getLogger(), threading.Lock(), threading.Event(), queue.Queue()
condition, rlock = threading.Condition(), threading.RLock()
done = []

def thread(n):
    event.wait()
    for i in range(200):
        with lock, rlock, rlock:
            time.sleep(0.0001) if i % 10 == 0 else log.warning("line %d", i)
        line.put(n)
    with condition:
        done.append(n)
        condition.notify()

for n in range(6):
    start(thread, (n,))
gevent.sleep(0.05)
event.set()
for _ in range(200):
    log.warning("main")
    gevent.sleep(0.0005)
with condition:
    while len(done) < 6:
        assert condition.wait(60)
assert line.qsize() == 6 * 200
assert [line.get() for _ in range(1200)].count(3) == 200
print("done")
"""


def test_a_patched_process_logs_locks_and_queues_from_native_threads():
    ran = subprocess.run([sys.executable, "-c", PATCHED], capture_output=True, text=True, timeout=100, check=False)
    assert ran.stdout == "done\n", ran.stderr[-2000:]
