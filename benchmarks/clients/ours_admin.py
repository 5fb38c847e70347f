"""This framework with its admin endpoint, which another process scrapes twice a second."""

import signal
import subprocess
import sys

import gevent

from framework import Message, Publisher, admin, handler
from framework.engine.supervisor import Supervisor
from framework.handler import registered
from framework.transports import open_transports

_, address = sys.argv[1:]
urls = [f"nsq://{address}"]
transports = open_transports(urls)
SCRAPE = """
import sys, time, urllib.request
while True:
    urllib.request.urlopen(sys.argv[1]).read()
    time.sleep(0.5)
"""


@handler("bench", "bench", concurrency=50, max_in_flight=2500)
def nothing(message: Message) -> None:
    pass


supervisor = Supervisor(registered(), transports, publish=Publisher(transports).publish)
gevent.signal_handler(signal.SIGTERM, supervisor.stop)
listener = admin.listen("127.0.0.1:0")
pages = admin.Pages(admin.Here(supervisor), lambda: open_transports(urls), admin.Access(local=True))
server = admin.Server(listener, pages.answer)
scraper = subprocess.Popen([sys.executable, "-c", SCRAPE, f"http://{listener.address}/metrics"], stderr=subprocess.DEVNULL)
try:
    supervisor.run()
finally:
    scraper.kill()
    server.close()
