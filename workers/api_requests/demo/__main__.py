"""``python -m workers.api_requests.demo``."""

import signal
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the demo listens: a Ctrl-C in the imports below is no error of ours

from workers.api_requests.demo.command import main  # noqa: E402

sys.exit(main())
