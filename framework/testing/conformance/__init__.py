"""The conformance suite: what every transport promises, as pytest cases that anyone can run over their own.

Say how your broker is started (``Subject``, ``Node``), subclass ``Suite``, and give it the fixture ``subject``::

    import pytest
    from framework.testing.conformance import Node, Subject, Suite

    class ThingNode(Node):
        def __init__(self, server):
            self.server, self.address = server, server.address
            self.url = f"thing://{server.address}"
        def up(self): self.server.start()
        def down(self): self.server.kill()       # SIGKILL, where what it confirmed is on disk

    class Thing(Subject):
        brief = 1.0                               # seconds: the lease of the nodes that are started with brief=True
        wrong_urls = ("thing://host?nope=1",)     # refused in one sentence, before anything is connected
        def make(self, *, brief):                 # a node that is not up yet; each one is a server of its own
            return ThingNode(my_server("--lease=1s" if brief else "--lease=60s"))

    @pytest.fixture(scope="module")
    def subject():
        with Thing() as subject:
            yield subject

    class TestThing(Suite):
        pass

Then ``pytest test_thing.py``. The cases are driven by the ``Capabilities`` that the transport declares: what it lacks must be
refused at start, or by the publisher, and then that is the case. ``subject`` is shared by all cases of a file, so a broker is
started about four times, and each case has topics of its own. The chapters may be taken one by one, as bases of your class:

- ``Core``: each promise of a connection by itself, before a strict receiver; then publish, handle, fail, give up, batches, stop;
  needs ``up`` once and no socket. The least that a transport does.
- ``Publishing``: deferral, priorities, sizes, names, threads, two nodes.
- ``Leases``: touching, losing, timeouts; needs ``brief``.
- ``Faults``: the broker ends and comes back, the network is cut, slow, or silent; needs ``down`` and, for most, ``address``.
- ``Crashes``: a worker is killed or told to stop; needs a broker that other processes can reach.

Whatever a case does, when it ends the ledger of each of its workers must add up: received = finished + requeued + dead +
lease_lost + lost. Cases that take more than about five seconds are marked ``slow``. Nothing here patches; gevent's hub runs in
the test's thread.
"""

import pytest

for _chapter in ("bench", "contract", "core", "crashes", "failing", "faults", "leases", "publishing", "receiver", "subject"):
    pytest.register_assert_rewrite(f"{__name__}.{_chapter}")

from framework.testing.conformance.bench import Bench, Worker  # noqa: E402
from framework.testing.conformance.core import Core  # noqa: E402
from framework.testing.conformance.crashes import Crashes  # noqa: E402
from framework.testing.conformance.faults import Faults  # noqa: E402
from framework.testing.conformance.leases import Leases  # noqa: E402
from framework.testing.conformance.publishing import Publishing  # noqa: E402
from framework.testing.conformance.subject import Node, Subject  # noqa: E402


class Suite(Core, Publishing, Leases, Faults, Crashes):
    """Every chapter."""


__all__ = ["Bench", "Core", "Crashes", "Faults", "Leases", "Node", "Publishing", "Subject", "Suite", "Worker"]
