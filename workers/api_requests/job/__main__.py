"""``python -m workers.api_requests.job``."""

import os
import sys
from contextlib import suppress

from workers.api_requests.job.command import main

code = main()
for stream in (sys.stdout, sys.stderr):
    with suppress(OSError, ValueError, AttributeError):  # nobody reads it any more, or it was closed before we began
        stream.flush()
# All that must be kept is on the disk, and Spark's session is stopped. A batch that a signal broke off may still be in C++ of
# Arrow's, in a thread of py4j's: the end of the interpreter took what it works on away, and SIGSEGV ended the process.
os._exit(code)
