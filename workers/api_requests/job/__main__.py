"""``python -m workers.api_requests.job``."""

import sys

from workers.api_requests.job.command import main

sys.exit(main())
