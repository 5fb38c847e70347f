"""The servers that are built by Go, or come as jars or packages, fetched before the first test that needs one.

``python -m tests.fetched fast`` for the fast tests, ``slow FILE`` for the others, which removes the file at its end. A test may
take two minutes, and on a machine where Go has compiled nothing yet, beside seven other tests, an S3 gateway alone took longer:
nine tests failed there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

from framework.testing import rocketmq
from framework.testing.servers import ServerMissing, nsq_binary
from framework.testing.storages import azurite_modules, hdfs_jars, s3_binary

FAST: Sequence[Callable[[], object]] = [*(partial(nsq_binary, name) for name in ("nsqd", "nsqlookupd", "nsqadmin")), s3_binary]
SLOW: Sequence[Callable[[], object]] = [partial(rocketmq.jars, version) for version in (rocketmq.VERSION, rocketmq.OLDER)]
LONG: Sequence[Callable[[], object]] = [hdfs_jars]
"""Of what has the mark ``long_run``."""
AT_LENGTH: Sequence[Callable[[], object]] = [azurite_modules]
"""Of what has the mark ``at_length``."""


def fetch(wanted: Sequence[Callable[[], object]]) -> None:
    """All that can be had. What cannot is said; the tests that need it skip, or fail in CI."""
    for make in wanted:
        try:
            make()
        except ServerMissing as missing:
            print(f"setup: {missing}", file=sys.stderr, flush=True)


def main(which: str, *awaited: str) -> None:
    """``awaited``: files that others wait for the end of."""
    at_length = bool(os.environ.get("AT_LENGTH"))
    long = at_length or bool(os.environ.get("LONG_RUNS"))
    try:
        fetch(FAST if which == "fast" else [*SLOW, *(LONG if long else ()), *(AT_LENGTH if at_length else ())])
    finally:
        for path in awaited:
            os.unlink(path)


if __name__ == "__main__":
    os.setpgid(0, 0)  # beside other work, in a process group, which whoever started it can end as a whole
    main(*sys.argv[1:])
