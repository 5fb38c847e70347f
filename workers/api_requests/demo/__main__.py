"""``python -m workers.api_requests.demo``."""

import sys

from workers.api_requests.demo.command import main

sys.exit(main())
