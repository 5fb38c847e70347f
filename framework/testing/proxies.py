"""Several proxies that are told the same: what stands before a broker of several servers, each of which a worker connects to."""

from __future__ import annotations

from collections.abc import Sequence

from framework.testing.proxy import Lane, Proxy


class Lanes:
    """``proxy.Lane`` of each."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes

    def cut_after(self, count: int) -> None:
        """Each cuts once, whenever so many bytes have passed there."""
        for lane in self._lanes:
            lane.cut_after(count)

    def swallow(self) -> None:
        for lane in self._lanes:
            lane.swallow()


class Proxies:
    """``proxy.Proxy`` before each of ``targets`` (``host:port``), as far as the conformance suite uses one."""

    def __init__(self, targets: Sequence[str]) -> None:
        self._all = [Proxy(target) for target in targets]
        self.address = ",".join(one.address for one in self._all)
        self.to_server = Lanes([one.to_server for one in self._all])
        self.to_client = Lanes([one.to_client for one in self._all])

    @property
    def cuts(self) -> int:
        return sum(one.cuts for one in self._all)

    def cut(self, *, reset: bool = False) -> int:
        return sum(one.cut(reset=reset) for one in self._all)

    def refuse(self) -> None:
        for one in self._all:
            one.refuse()

    def delay(self, seconds: float) -> None:
        for one in self._all:
            one.delay(seconds)

    def trickle(self) -> None:
        for one in self._all:
            one.trickle()

    def hold(self) -> None:
        for one in self._all:
            one.hold()

    def swallow(self) -> None:
        for one in self._all:
            one.swallow()

    def restore(self) -> None:
        for one in self._all:
            one.restore()

    def stop(self) -> None:
        for one in self._all:
            one.stop()
