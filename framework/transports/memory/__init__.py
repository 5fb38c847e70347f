"""A broker inside the process, ``memory://``: the whole contract without a socket, with a clock and faults for tests."""

from framework.transports.memory.broker import MemoryBroker, add, forget, named
from framework.transports.memory.clock import Clock

__all__ = ["Clock", "MemoryBroker", "add", "forget", "named"]
