"""``python -m framework.nsqd``: the embedded nsqd as a process of its own, importing nothing that it does not need."""

import sys

from framework.nsqd.server import main
from framework.process_end import end_process

end_process(main(sys.argv[1:]))
