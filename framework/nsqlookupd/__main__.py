"""``python -m framework.nsqlookupd``: the embedded nsqlookupd as a process of its own."""

import sys

from framework.nsqlookupd.server import main
from framework.process_end import end_process

end_process(main(sys.argv[1:]))
