"""Messages that come and go, for tests of credit: time passes as the test says."""

from __future__ import annotations

from framework.engine.credit import PERIOD, TERM, Credit, Share


class Traffic:
    """Lines whose messages are handled at once, with time that passes as told."""

    def __init__(self, shares: int, max_in_flight: int, concurrency: int = 10, ahead: int = 0) -> None:
        self.credit = Credit(max_in_flight, concurrency, ahead)
        self.now, self.settled = 1.0, 0
        self.shares = [self.connect() for _ in range(shares)]
        self.tick()

    def connect(self) -> Share:
        share = self.credit.connect(2500, self.now)
        self.credit.grant(share, 0)
        return share

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += PERIOD
            for share in self.credit.tick(self.now, self.settled, PERIOD):
                self.credit.grant(share, share.in_flight)
            self.settled = 0

    def term(self, early: float = 0.0) -> None:
        """What happens in a TERM, whose timer may be a little early."""
        self.now += TERM - early
        self.credit.rotate(self.now)
        for share in self.shares:
            self.credit.grant(share, share.in_flight)

    def full(self, share: Share, *, after: float = 0.0001, in_flight: int = 0) -> None:
        """As many messages come as the grant lets in."""
        self.now += after
        count = share.granted - share.in_flight
        if count > 0:
            self.credit.arrived(share, count, self.now, 0.0)
        self.settled += share.granted - in_flight
        self.credit.grant(share, in_flight)

    def flood(self, share: Share, ticks: int = 10) -> None:
        for _ in range(ticks):
            for _ in range(12):
                self.full(share)
            self.tick()
