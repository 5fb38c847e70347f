"""What a burst leaves behind goes back to the system."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import weakref

import pytest
from gevent import socket

from framework.nsqd.client_connection import ClientConnection
from framework.nsqd.underway import Memory
from framework.transports.nsq.stream import Deflate

_BURST = """
import random, gevent, psutil
from framework.nsqd import memory

memory.keep_small()
gevent.sleep(0)
resident = psutil.Process().memory_info
before, dice = resident().rss, random.Random(1)
burst = [bytes(dice.randrange(600, 60_000)) for _ in range(5_000)]
dice.shuffle(burst)
del burst[50:]  # those that stay lie among the others
left = resident().rss - before
gevent.sleep(2.5)
print(left >> 20, resident().rss - before >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator is left alone")
def test_the_memory_of_a_burst_is_given_back() -> None:
    said = subprocess.run([sys.executable, "-c", _BURST], capture_output=True, text=True, check=True, timeout=60).stdout
    left, kept = map(int, said.split())
    assert left > 50, "the allocator keeps it by itself: there is something to give back"
    assert kept < 16


_TOP = """
import ctypes, gevent
from framework.nsqd import memory

libc = ctypes.CDLL(None)
libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]


def left(count):
    pieces = [0] * count  # now, so that the list does not lie above what it holds
    for at in range(count):
        pieces[at] = libc.malloc(100_000)
    end = libc.sbrk(0)
    for piece in reversed(pieces):
        libc.free(piece)
    return end - libc.sbrk(0)


if {keeps}:
    memory.keep_small()
print(left(50), left(500))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator is left alone")
def test_the_heaps_end_stays_for_what_comes_next_as_far_as_it_is_small() -> None:
    gone = {}
    for keeps in (True, False):
        said = subprocess.run([sys.executable, "-c", _TOP.format(keeps=keeps)], capture_output=True, text=True, check=True)
        gone[keeps] = list(map(int, said.stdout.split()))
    assert gone[True][0] == 0 < gone[False][0]
    assert gone[True][1] > 30_000_000


def test_who_has_left_holds_no_layer_and_no_bytes_until_the_collector_comes() -> None:
    ours, theirs = socket.socketpair()
    connection = ClientConnection(ours, "", lambda *_: None, lambda: None, lambda: None, memory=Memory(1 << 20))
    codec = Deflate(6)
    held = weakref.ref(codec)
    connection.compress(codec)
    connection.incoming.buffer += b"x" * 100
    del codec
    gc.disable()
    try:
        connection.end()
        assert held() is None
        assert not connection.incoming.buffer
    finally:
        gc.enable()
        theirs.close()
