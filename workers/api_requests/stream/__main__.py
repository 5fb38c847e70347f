"""``python -m workers.api_requests.stream``."""

import os
import signal
import sys
from contextlib import suppress

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the job listens: a Ctrl-C in the imports below is no error of ours

from workers.api_requests.stream.command import main  # noqa: E402

code = main()
for stream in (sys.stdout, sys.stderr):
    with suppress(OSError, ValueError, AttributeError):  # nobody reads it any more, or it was closed before we began
        stream.flush()
# All that must be kept is on the disk, and Spark's session is stopped. A batch that a signal broke off may still be in C++ of
# Arrow's, in a thread of py4j's: the end of the interpreter took what it works on away, and SIGSEGV ended the process.
os._exit(code)
