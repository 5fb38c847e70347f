"""The figures of the pages are those of the code: each is found on its page in the words that are made from the constant."""

from __future__ import annotations

import math

import pytest

from framework import app, history, values
from framework.admin import backlog, feed, figures, fresh, here, letters, pages
from framework.dedupe import dedupe, sqlite
from framework.engine import backoff, guardian, later_dialler, tie, unstarted, ways
from framework.history import writer
from framework.master import master, seat
from framework.master import source as master_source
from framework.middleware import dead_letter
from framework.middleware.envelope import Header, sealed
from framework.middleware.later import LEAST_HOP
from framework.nsqd import backlog as nsqd_backlog
from framework.nsqd import broker, retries
from framework.observe import background, hublog, stderr
from framework.sentry import watch as sentry_watch
from framework.settings import Settings
from framework.spool import seen
from framework.testing import runner
from framework.testing.servers import ROOT
from framework.transports import lease_guard
from framework.transports.beanstalkd import job_leases, producer, waiters
from framework.transports.nats import changes, streams
from framework.transports.nats import urls as nats_urls
from framework.transports.nats_route import session as route_session
from framework.transports.nats_route import urls as route_urls
from framework.transports.nats_route import weights
from framework.transports.nsq import register
from framework.transports.rocketmq import administration, commands, delivery, publish_link, pulled, queues
from framework.transports.rocketmq import producer as rocketmq_producer
from framework.transports.rocketmq import urls as rocketmq_urls
from framework.transports.rocketmq.wire import properties
from tests.conformance.variants import VARIANTS

WORDS = {2: "two", 4: "four", 10: "ten"}
FIGURES = {
    "failure": [
        f"1, 2, 4, … seconds, at most {backoff.RETRY_CAP / 60:g} minutes",
        f"{unstarted.MOST:,} messages of each handler",
        "gives back with a delay of a second",
        f"its last {backoff.HISTORY} messages failed, at least {backoff.FEWEST_FAILURES} different ones",
        f"({backoff.KNOWN:,} of them are remembered)",
        "When two did not fail",
        f"at most `longest_pause` ({Settings().longest_pause:g})",
        f"its last {dead_letter.TRACEBACK_LIMIT} characters",
        "Workers look once a minute",
        "no delay of a tenth of a second or more",
    ],
    "slots": [
        f"Up to {background.SIZE:,} pieces wait",
        "waits two seconds for its last lines",
        "has blocked the hub for 1.0 s",
    ],
    "promises": [
        "for two seconds at most",
        f"within `--drain` ({Settings().drain:g} s)",
        f"[`publish_timeout`](settings.md), {Settings().publish_timeout:g} s",
        "A second after `--drain` it ends the process",
    ],
    "testing": [f"A batch waits {runner.LINGER * 1000:g} ms at most"],
    "beanstalkd": [
        f"{waiters.MOST} at most",
        f"and {job_leases.MAX_GRANT} the jobs reserved on one",
        f"Count {waiters.MOST + 1} open files",
        "looks at an empty tube ten times a second",
        "handlers and five seconds",
    ],
    "nsq": [
        f"all connect, {ways.AT_ONCE} at a time",
        f"stood for {tie.STEADY:g} seconds",
        f"made anew within {backoff.RECONNECT_BASE:g} s",
        f"every {backoff.RECONNECT_CAP:g} seconds in the end",
        f"Above {register.CROWD} topics",
        "at least every half second for a minute",
        "asked for their limits, for half a second",
    ],
    "admin": [
        "with a token of 16 characters or more",
        "Beyond a hundred topics of a handler",
        f"over the last {WORDS[int(here.WINDOW)]} seconds",
        "at most every five seconds",
        "Twenty pages can be open",
        f"lists {letters.SHOWN} of them",
        "one a second: the handlers that have changed",
        "written at most twice a second, and takes no more than a tenth of the time",
    ],
    "history": [
        f"{writer.SIZE >> 20} MB wait in memory",
        f"or {writer.SIZE // writer._AN_ENTRY // 100_000 * 100_000:,} that failed",
        "writes four times a second at most",
        "waits two seconds for the last of it",
        f"At its end a worker waits {WORDS[int(history.PATIENCE)]} seconds",
        f"| {Settings().history_age / 3600:g}h |",
    ],
    "nats": [
        f"| `ack_wait=` | `{nats_urls.Options().ack_wait:g}s` |",
        f"| `max_ack_pending=` | `{nats_urls.Options().max_ack_pending}` |",
        f"| `retention=` | `{nats_urls.Options().retention}` |",
        f"| `replicas=` | `{nats_urls.Options().replicas}` |",
        f"| `max_payload=` | `{nats_urls.Options().max_payload}` |",
        f"| `ping_interval=` | `{nats_urls.Options().ping_interval:g}s` |",
        f"for {lease_guard.CERTAIN * 100:g} % of a lease",
        f"look at it every {changes.REGULARLY:g} s",
        f"younger than {WORDS[int(streams.FRESH)]} seconds",
        f"the same one for {streams.SETTLING:g} s",
        f"`{streams.LATER}<topic>.<number>`",
        f"| Counted attempts | {'.'.join(map(str, streams.COUNTS))} |",
        f"| `publish(delay=)` | {'.'.join(map(str, streams.SCHEDULES))} |",
        f"Before {'.'.join(map(str, streams.ONE_OF_A_NAME))} two clients",
    ],
    "nats-route": [
        f"is {weights.PER_SLOT} for each slot",
        f"the number of slots, up to {weights.FULL},",
        f"stays under about {weights.MOST}",
        f"after {route_session.DESERTED:g} s otherwise",
        f"| `account=` | `{route_urls.Options().account}` |",
        f"| `ping_interval=` | `{route_urls.Options().ping_interval:g}s` |",
        f"| `backlog=` | `{route_urls.Options().backlog}` |",
    ],
    "rocketmq": [
        f"| `lease` | `{rocketmq_urls.Options().lease:g}s` |",
        f"| `poll` | `{rocketmq_urls.Options().poll:g}s` |",
        f"| `answer_timeout` | `{rocketmq_urls.Options().answer_timeout:g}s` |",
        f"| `max_body` | `{rocketmq_urls.Options().max_body}` |",
        f"made with {WORDS[administration.QUEUES]} queues",
        f"has {WORDS[administration.QUEUES]} queues on each broker",
        f"{queues.SPAN:,} messages at most",
        f"the broker's {len(pulled.LEVELS)} delays",
        "1, 5, 10 and 30 s, 1 to 10 minutes, 20 and 30 minutes, 1 and 2 hours",
        "A handler that is paused for a second leaves",
        f"puts {commands.LEAST} to {commands.MOST} messages into a request",
        f"up to {publish_link.WINDOW} at a time",
        f"may have {properties.MAX_PROPERTIES:,} bytes",
        f"until {WORDS[round(delivery.APART * 1000)]} milliseconds have passed",
        "for up to three days",
    ],
    "nsqd": [
        "A channel holds a quarter of a megabyte of what waits",
        f"it holds {retries._WAITING_BYTES >> 20} MiB of bodies",
        f"has not answered for {broker._STUCK_SECONDS:g} seconds",
    ],
    "processes": [
        "Four seconds after `--drain` the master kills",
        f"and so on up to {seat.LONGEST_PAUSE:g} s",
        "dies again within a minute",
        "The master looks",
        "does not answer within half a second",
    ],
    "middleware": [
        f"`age` seconds (a day), the newest `most` ({dedupe.MOST:,})",
        f"ends {dedupe.MARGIN:g} s after the call's `timeout`",
        f"waited for {sqlite.NOTE_PATIENCE:g} s at the",
    ],
    "sentry": [f"send bodies ({sentry_watch.BODY} characters)"],
    "spark": ["(500000)"],
    "transports": ["`examples/directory_broker` is one in 160 lines", "more than forty broken variants"],
}
ROUND = [
    unstarted.PUT_OFF == 1, backoff.VOTES == 2, later_dialler.POLL == 60, LEAST_HOP == 0.1, hublog._FLUSH_SECONDS == 2,
    stderr._FLUSH_SECONDS == 2, guardian.WORTH_A_WORD == 1, guardian.GRACE == 1, waiters.KNOCK == 0.1, producer.MARGIN == 5,
    backoff.RECONNECT_OFTEN == 0.5, ways.LOST == 60, app._DESCRIBE_SECONDS == 0.5, len(VARIANTS) > 40,
    values.token("x" * 16) == "x" * 16, figures.TOPICS == 100, backlog.FRESH == 5, feed.READERS == 20, feed.EVERY == 1,
    pages.CACHED == 0.5, fresh.SHARE == 0.1,
    nsqd_backlog.WINDOW_BYTES == 1 << 18, master.MARGIN == 4, seat.STEADY == 60,
    master_source.PATIENCE == 0.5,
    seen.WINDOW == 500_000, dedupe.AGE == 86_400, writer.PERIOD == 0.25, queues.PAUSED == 1,
    0 < 3 * 86_400 - rocketmq_producer.MAX_DELAY < 600, pulled.LEVELS[:4] == (1, 5, 10, 30),
    pulled.LEVELS[4:14] == tuple(60 * n for n in range(1, 11)), pulled.LEVELS[14:] == (1200, 1800, 3600, 7200),
]  # fmt: skip
"""The constants whose figures stand on the pages as words."""


@pytest.mark.parametrize(("page", "words"), [(page, words) for page, figures in FIGURES.items() for words in figures])
def test_the_page_has_the_figure_of_the_code(page: str, words: str) -> None:
    assert words in " ".join((ROOT / "docs" / f"{page}.md").read_text().split())


def test_the_figures_that_are_words_are_those_of_the_code_too() -> None:
    assert all(ROUND)


def test_an_envelope_is_as_large_as_the_page_about_failure_says() -> None:
    usual, largest = (envelope(topic, channel) for topic, channel in (("orders", "billing"), ("t" * 64, "c" * 64)))
    words = f"(about {math.ceil(usual / 10) * 10} bytes, {math.ceil(largest / 10) * 10} where its names are the longest)"
    assert words in " ".join((ROOT / "docs" / "failure.md").read_text().split())


def envelope(topic: str, channel: str) -> int:
    """Bytes beside the body."""
    now = 1_700_000_000.123
    header = Header(topic, channel, "0c4a7e5d1b2f3a60", "127.0.0.1:4150", int(now * 1e9), 3, now + 7200, stored=now, hops=2)
    return len(sealed(header, b""))


def test_the_example_of_a_transport_is_as_long_as_the_page_says() -> None:
    lines = (ROOT / "examples" / "directory_broker" / "directory_broker.py").read_text().count("\n")
    assert lines <= 160
