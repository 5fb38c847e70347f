"""How a signal ends the job: in order where there is time for it, and within seconds in any case."""

from __future__ import annotations

import os
import signal
import threading

from workers.api_requests.processes import descendants, kill

_GRACE = 3.0  # seconds from a signal to the end


class Stopping:
    """SIGTERM and SIGINT ask for the end; what has not ended by itself after a moment is left as it is.

    That loses nothing: a batch that is broken off runs again, as after a kill -9. A JVM on a busy machine may take
    longer to come down than process managers wait (honcho: 5 s).

    ``guest``: the process is another's, as a notebook's is. It is not ended, and has its signals again after ``give_back``.
    """

    def __init__(self, *, guest: bool = False) -> None:
        self.asked = False  # no Event: a signal may come while its lock is held, and would wait for ever
        self._guest = guest
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self.listen()

    def listen(self) -> None:
        """Once more after something took the signals: pyspark's session raises KeyboardInterrupt on SIGINT."""
        for number in self._before:
            signal.signal(number, self._ask)

    def give_back(self) -> None:
        """Its signals to a process that is another's, once the job is over."""
        if self._guest:
            for number, before in self._before.items():
                signal.signal(number, before)

    def _ask(self, *_: object) -> None:
        first, self.asked = not self.asked, True
        if first and not self._guest:
            last = threading.Timer(_GRACE, self._leave)
            last.daemon = True
            last.start()

    def _leave(self) -> None:
        kill(descendants(os.getpid()))
        os._exit(0)
