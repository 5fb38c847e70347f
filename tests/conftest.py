"""Fixtures that every room's tests share: real servers, skipped where missing on a laptop, failing in CI."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import gevent
import hypothesis
import pytest

from framework.testing import servers, storages
from framework.testing.certificates import Authority
from framework.testing.proxy import Proxy, proxies
from framework.testing.rocketmq import PROMPT, RocketMQ, real_rocketmq, with_certificate
from tests import forked

# What is ignored here, as under nohup or in the background of a shell, the processes that tests start would ignore as well.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# Most of what it costs to start a worker is importing it, a thousand times.
forked.install()

AT_LENGTH = bool(os.environ.get("AT_LENGTH"))
"""Also what ``python -m tests.chaos`` runs alone."""
LONG_RUNS = AT_LENGTH or bool(os.environ.get("LONG_RUNS"))
"""Also what CI runs and ``make test`` leaves out."""

# Collecting makes two million objects that all stay: looking for garbage among them takes a third of the time, again and again.
gc.disable()

# An example that meets a busy machine may take as long as it likes.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What has been collected stays, and is not looked at again when garbage is looked for; nor is it looked at now, in each of
    many processes."""
    gc.freeze()
    gc.enable()


FETCHING = os.environ.get("FETCHING")
"""A file that is there while the servers of the slow tests are fetched, beside the fast ones."""
FETCHED_WITHIN = 900.0
"""Seconds."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """The time that a test may take begins when what it needs is there."""
    if FETCHING is not None and not _is_fast(item):
        until = time.monotonic() + FETCHED_WITHIN
        while os.path.exists(FETCHING) and time.monotonic() < until:
            time.sleep(0.1)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """A hub that did not turn since an earlier test counts timeouts from then: they could be over before they begin."""
    gevent.get_hub().loop.update_now()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Variables and signals are afterwards what they were: what comes next in this process would be started with them."""
    yield
    forked.reap_by_name()
    if left := forked.left_behind():
        pytest.fail(f"changed, and not put back: {', '.join(left)}", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In several processes those of a file stay together, and so do all that share the Spark session, the RocketMQ, or the HDFS.

    A test that starts Spark in processes of its own goes wherever there is room, and so does each fault of the chaos runs.
    What starts Spark has longer to end, too: interrupted in the middle, it takes the session from all that come after it.

    What takes longest comes first, so that nothing long begins when all else is over: tools/test has them keep this order.
    """
    left_out = {"at_length": not AT_LENGTH, "long_run": not LONG_RUNS}
    items[:] = [item for item in items if not any(left_out.get(mark.name) for mark in item.iter_markers())]
    for item in items:
        starts_spark = item.get_closest_marker("spark") is not None
        shares_spark = "spark" in getattr(item, "fixturenames", ())
        shared = next((name for name in SHARED if name in getattr(item, "fixturenames", ())), item.nodeid.partition("::")[0])
        alone = (starts_spark and not shares_spark) or item.nodeid.startswith(SCENARIOS)
        group = item.nodeid if alone else shared if _is_fast(item) or shared in SHARED else f"{shared}, slow"
        item.add_marker(pytest.mark.xdist_group(group))
        if starts_spark and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))
    items[:] = _in_order(items)


SHARED = ("spark", "rocketmq", "hdfs")
"""Fixtures of a session that cost seconds to start."""
SCENARIOS = "tests/chaos/test_chaos.py::"
LONG = (
    "tests/nsqd/test_gnsq_suite.py", "tests/chaos/", "tests/engine/test_guardian.py", "tests/conformance/", "tests/master/",
    "tests/workers/test_demo_ends.py", "tests/house/test_web_page.py", "tests/house/test_wheel.py", "tests/engine/test_nsqd.py",
    "tests/transports/nats/test_stop.py", "tests/transports/nats_route/test_streams_kills.py",
)  # fmt: skip
"""What takes long and does not start Spark, each file in one process."""
SOON = 0.1
"""The share of the fast ones that come before what many share, whose servers may have to be fetched."""
COMPUTED = 0.2, 0.7
"""After which share of what waits the first of what computes comes, and the last."""


def _in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """The fast ones come first, and soon among them what many share, one after the other. What starts a Spark of its own
    computes, and most other slow ones wait: the former come between the latter, those of one kind between those of the other,
    and well before the end."""
    places: dict[int, dict[str, list[pytest.Item]]] = defaultdict(dict)
    for item in items:
        group = next(item.iter_markers("xdist_group")).args[0]
        places[_place(item)].setdefault(group, []).append(item)
    shared, computing, long, others = ([*places[place].values()] for place in range(4))
    fast = sorted(places[4].values(), key=len, reverse=True)
    soon = round(SOON * len(fast))
    waiting = [*long, *others]
    ordered = [*fast[:soon], *shared, *fast[soon:]]
    taken = 0
    for number, group in enumerate(computing):
        until = round(len(waiting) * (COMPUTED[0] + (COMPUTED[1] - COMPUTED[0]) * number / len(computing)))
        ordered += [*waiting[taken:until], group]
        taken = until
    return [item for group in [*ordered, *waiting[taken:]] for item in group]


def _is_fast(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is None and item.get_closest_marker("spark") is None


def _place(item: pytest.Item) -> int:
    """0: it shares what is started once; 1: it starts a Spark of its own; 2: it is slow and long; 3: it is slow; 4: fast."""
    if any(name in SHARED for name in getattr(item, "fixturenames", ())):
        return 0
    if _is_fast(item):
        return 4
    if item.get_closest_marker("spark") is not None:
        return 1
    return 2 if item.nodeid.startswith(LONG) else 3


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """How long the tests of each room took, set-up and tear-down included: where to look when the suite has become slow."""
    rooms: dict[str, float] = defaultdict(float)
    reports = [
        one for all_of_kind in terminalreporter.stats.values() for one in all_of_kind if isinstance(one, pytest.TestReport)
    ]
    for report in reports:
        rooms[report.nodeid.split("/")[1]] += report.duration
    fast = [report.stop for report in reports if report.nodeid.endswith(f"@{report.nodeid.partition('::')[0]}")]  # by its group
    if fast and len(fast) < len(reports):
        until = max(fast) - min(report.start for report in reports)
        terminalreporter.write_line(f"seconds until the fast tests were over: {until:.0f}")
    words = [f"{room} {seconds:.0f}" for room, seconds in sorted(rooms.items(), key=lambda entry: -entry[1]) if seconds >= 1]
    if len(words) > 1:
        terminalreporter.write_line(f"seconds by room: {', '.join(words)}; {sum(rooms.values()):.0f} in all, several at a time")


def missing(reason: str) -> None:
    """A real part is missing: a skip on a laptop, a failure in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def _real_start(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the test starts is started for real, where it is marked so."""
    if request.node.get_closest_marker("real_start") is None:
        yield
        return
    with forked.real_starts():
        yield


@contextmanager
def starting(make: Callable[..., servers.Server]) -> Iterator[Callable[..., servers.Server]]:
    """``make`` with its servers started, and all of them killed at the end."""
    started: list[servers.Server] = []

    def start(*flags: str, **options: Any) -> servers.Server:
        try:
            server = make(*flags, **options)
        except servers.ServerMissing as error:
            missing(str(error))
            raise
        server.start()
        started.append(server)
        return server

    try:
        yield start
    finally:
        for server in started:
            server.kill()


@pytest.fixture
def start_nsqd(tmp_path: Path) -> Iterator[Callable[..., servers.Server]]:
    """Starts real nsqds: ``start_nsqd("--msg-timeout=2s")``."""

    def make(*flags: str) -> servers.Server:
        return servers.real_nsqd(Path(mkdtemp(prefix="nsqd-", dir=tmp_path)), *flags)

    with starting(make) as start:
        yield start


@pytest.fixture
def nsqd(start_nsqd: Callable[..., servers.Server]) -> servers.Server:
    """One real nsqd with default flags."""
    return start_nsqd()


@pytest.fixture
def start_nsqlookupd() -> Iterator[Callable[..., servers.Server]]:
    """Starts real nsqlookupds."""
    with starting(servers.real_nsqlookupd) as start:
        yield start


@pytest.fixture
def start_beanstalkd(tmp_path: Path) -> Iterator[Callable[..., servers.Server]]:
    """Starts real beanstalkds: ``start_beanstalkd("-z", "1000")``."""

    def make(*flags: str) -> servers.Server:
        return servers.real_beanstalkd(Path(mkdtemp(prefix="beanstalkd-", dir=tmp_path)), *flags)

    with starting(make) as start:
        yield start


@pytest.fixture
def beanstalkd(start_beanstalkd: Callable[..., servers.Server]) -> servers.Server:
    """One real beanstalkd with default flags, whose INSERTED is durable."""
    return start_beanstalkd()


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[Callable[..., servers.Server]]:
    """Starts real nats-servers with JetStream: ``start_nats("max_payload: 1000", version="2.9")``."""

    def make(config: str = "", **options: Any) -> servers.Server:
        return servers.real_nats(Path(mkdtemp(prefix="nats-", dir=tmp_path)), config, **options)

    with starting(make) as start:
        yield start


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """One real RocketMQ for all tests that share it, in which each has topics of its own."""
    try:
        folder = tmp_path_factory.mktemp("rocketmq")
        server = Authority(folder).sign("server")  # its own certificate is ca-tests.pem
        # It would write its wheel of timers to the disk each second, which takes a tenth of a core. It is killed at the end.
        found = real_rocketmq(folder, PROMPT | {"timerFlushIntervalMs": "3600000"}, *with_certificate(server))
    except servers.ServerMissing as error:
        missing(str(error))
        raise
    found.start()
    yield found
    found.kill()


@pytest.fixture(scope="session")
def _hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[storages.Hdfs]:
    try:
        cluster = storages.Hdfs(tmp_path_factory.mktemp("hdfs"), **{"dfs.ls.limit": "10"})
    except servers.ServerMissing as error:
        missing(str(error))
        raise
    cluster.format()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


@pytest.fixture
def hdfs(_hdfs: storages.Hdfs) -> Iterator[storages.Hdfs]:
    """One real HDFS for all tests that share it. A test may kill what it consists of."""
    yield _hdfs
    _hdfs.start()


@pytest.fixture
def start_proxy() -> Iterator[Callable[[str], Proxy]]:
    """Puts a fault proxy before a server: ``start_proxy(nsqd.address).address`` is where to connect instead."""
    with proxies() as start:
        yield start


@pytest.fixture(scope="session")
def java() -> Iterator[None]:
    """Java 17 or newer, for Spark, which starts quickly below this process from now on."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if java is None:
        missing("Spark needs Java 17 or newer, and there is no `java` on the PATH")
        return
    words = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = words.split('"')[1] if '"' in words else "0"
    if int(version.split(".")[0]) < 17:
        missing(f"Spark needs Java 17 or newer, and this is {version}")
    from tests import quick_spark

    with pytest.MonkeyPatch.context() as environment:
        for name, value in quick_spark.environment(java).items():
            environment.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[Any]:
    """A local[2] session that lives for a short while only."""
    from pyspark.sql import SparkSession

    from workers.api_requests.stream.session import SHORT

    settings = SHORT | {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
    }
    with pytest.MonkeyPatch.context() as environment:  # its JVM has it from here on, and what other tests start has not
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        # Spark looks for pyspark_nsq on sys.path itself, where an editable install is not.
        environment.setenv("PYTHONPATH", str(servers.ROOT), prepend=os.pathsep)
        session = SparkSession.builder.master("local[2]").appName("tests").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
