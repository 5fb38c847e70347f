"""A collector as ``format("nsq")`` has it: ``landing.py ADDRESS FOLDER``."""

import signal
import sys
import time

from framework.spark import options
from framework.spark.collector import Collector

address, folder = sys.argv[1:]
collector = Collector(
    options.stream_read({"spoolDir": folder, "topic": "bench", "channel": "bench", "nsqdTcpAddresses": address})
)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
collector.start()
while True:
    time.sleep(0.2)
    collector.check()
