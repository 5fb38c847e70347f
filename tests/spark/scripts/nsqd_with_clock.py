"""An embedded nsqd whose wall clock is off: ``nsqd_with_clock.py SECONDS FLAGS...``."""

from __future__ import annotations

import sys
import time

real, real_ns, off = time.time, time.time_ns, float(sys.argv[1])
time.time = lambda: real() + off
time.time_ns = lambda: real_ns() + int(off * 1e9)

from framework.nsqd.server import main  # noqa: E402

sys.exit(main(sys.argv[2:]))
