"""``python -m framework.nsqlookupd``: the embedded nsqlookupd as a process of its own."""

import sys

from framework.nsqlookupd.server import main

sys.exit(main(sys.argv[1:]))
