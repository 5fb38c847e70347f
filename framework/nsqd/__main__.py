"""``python -m framework.nsqd``: the embedded nsqd as a process of its own, importing nothing that it does not need."""

import sys

from framework.nsqd.server import main

sys.exit(main(sys.argv[1:]))
