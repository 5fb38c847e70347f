"""What is done to the network between a worker and its broker, whichever that is."""

from __future__ import annotations

import time

from framework.testing.proxies import Proxies
from framework.testing.proxy import Proxy
from tests.chaos.trial import Trial


def cut_again_and_again(trial: Trial, proxy: Proxy | Proxies, times: int) -> None:
    """In the middle of what is said, in either direction, and with a reset."""
    for n in range(times):
        trial.between(0.1, 0.4)
        with trial.fault("connection cut"):
            if n % 3 == 0:
                proxy.cut(reset=n % 2 == 0)
            else:
                (proxy.to_client if n % 3 == 1 else proxy.to_server).cut_after(1 + n * 37 % 500)
                time.sleep(0.3)
    proxy.restore()


def drop_what_is_settled(trial: Trial, proxy: Proxy, times: int, what: str) -> None:
    """Messages come and what is said of them does not arrive."""
    for _ in range(times):
        trial.between(0.3, 0.6)
        with trial.fault(what):
            proxy.to_server.swallow()
            time.sleep(0.5)
            proxy.restore()
