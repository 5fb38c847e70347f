"""beanstalkd as a ``contract.Producer``: bodies checked before anything is sent, nodes tried in turn until a deadline.

Each native thread has its own hub, and so its own connection here; greenlets of one thread share one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from framework.errors import BadMessage, PublishError
from framework.headers import NONE, Headers
from framework.transports.beanstalkd import urls, wire
from framework.transports.beanstalkd.publish_link import PublishLink
from framework.transports.checked import check_bodies
from framework.transports.one_by_one import OneByOne
from framework.transports.per_thread import PerThread

DEADLINE = 30.0
MARGIN = 5.0
"""Seconds that a job's time to run is longer than its handler may take: for what surrounds the handler, and for slow networks."""


class BeanstalkdProducer(OneByOne):
    """Publishes to any of ``nodes``. Safe to share between greenlets and between native threads.

    ``deadline``: the timeout of a publish that names none.
    """

    def __init__(self, nodes: Sequence[str], options: urls.Options, *, deadline: float = DEADLINE) -> None:
        self._options = options
        self._deadline = deadline
        self._publishing = PerThread(lambda: nodes, PublishLink.to, broker="beanstalkd")

    def publish_each(
        self, topic: str, bodies: Sequence[bytes], *, delay: float = 0.0, priority: int | None = None,
        lease: float | None = None, timeout: float | None = None, headers: Headers = NONE,
    ) -> list[PublishError | None]:  # fmt: skip
        """Return when beanstalkd has answered INSERTED for all of ``bodies``, and for each copy where the topic fans out.

        ``delay``: rounded up to whole seconds. ``priority``: 0 to 2**32 - 1, 1024 if not given; a job that comes again keeps
        it. ``lease``: what the time to run is made from, the URL's ``ttr`` if not given.
        Raises BadName, BadMessage (nothing was sent), PublishError when the producer is closed.
        """
        self._check(topic, bodies, delay)
        ttr = self._options.ttr if lease is None else ttr_of(lease)
        urgency = wire.DEFAULT_PRIORITY if priority is None else priority
        puts = [wire.put(body, urgency, math.ceil(delay), ttr) for body in bodies]
        tubes = urls.tubes_of(topic, self._options)
        failover = self._publishing.here()
        seconds = self._deadline if timeout is None else timeout
        copies = [failover.store_each([(tube, put) for put in puts], seconds) for tube in tubes]
        return copies[0] if len(copies) == 1 else [_together(tubes, each) for each in zip(*copies, strict=True)]

    def close(self) -> None:
        """Close every connection; publishes that wait for an answer fail."""
        self._publishing.close()

    def _check(self, topic: str, bodies: Sequence[bytes], delay: float) -> None:
        for tube in urls.tubes_of(topic, self._options):
            urls.check(tube, topic)
        if not 0 <= delay <= wire.MAX_NUMBER:
            raise BadMessage(f"topic {topic!r}: a delay of {delay!r} s is out of range, beanstalkd takes 0 to {wire.MAX_NUMBER}")
        largest = self._options.max_job_size
        limit = f"beanstalkd takes up to {largest} (its -z; max_job_size= in the broker URL, if yours takes more)"
        check_bodies(topic, bodies, largest, limit)


def ttr_of(lease: float) -> int:
    """Whole seconds to run for a handler that may take ``lease`` seconds."""
    return min(math.ceil(lease + MARGIN), wire.MAX_NUMBER)


def _together(tubes: Sequence[str], answers: Sequence[PublishError | None]) -> PublishError | None:
    """What is known of one message from what is known of its copies."""
    failed = [(tube, answer) for tube, answer in zip(tubes, answers, strict=True) if answer is not None]
    if not failed:
        return None
    tube, error = failed[0]
    if len(failed) == len(answers) and all(answer.stored is False for _, answer in failed):
        return error
    done = ", ".join(tube for tube, answer in zip(tubes, answers, strict=True) if answer is None) or "none for certain"
    return PublishError(f"its copies are stored in {done}, but not in {tube}: {error}", stored=None)
