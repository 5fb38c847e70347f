"""The options of format nsq: a wrong one is answered with the right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.errors import WrongUse
from framework.spark import options

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "spark.md"

EMBEDDED = {"spoolDir": "/spool", "topic": "orders", "channel": "archive", "nsqdTcpAddresses": "a:4150, b:4150"}


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in EMBEDDED.items() if key != name}


def test_names_are_not_case_sensitive_and_defaults_are_filled_in() -> None:
    read = options.stream_read({name.upper(): value for name, value in EMBEDDED.items()})
    assert read.embedded
    assert read.urls == ("nsq://a:4150", "nsq://b:4150")
    assert (read.topic, read.channel, str(read.spool_dir)) == ("orders", "archive", "/spool")
    assert (read.max_messages, read.min_partitions, read.max_records) == (None, None, 250_000)
    assert read.segment_linger == 0.25
    assert read.trim
    assert read.fail_on_data_loss


def test_brokers_of_any_kind_are_named_by_their_urls() -> None:
    urls = "nsq://one:4150 nsq+lookupd://two:4161"
    assert options.write({"broker": urls, "topic": "t"}).urls == tuple(urls.split())
    for wrong, words in ((" ", "option broker is empty"), ("one:4150", "the scheme must be one of nsq://")):
        with pytest.raises(WrongUse, match=words):
            options.write({"broker": wrong, "topic": "t"})


def test_lookupds_and_durations_and_flags() -> None:
    read = options.stream_read(
        {**without("nsqdTcpAddresses"), "lookupdHttpAddresses": "[::1]:4161", "segmentLinger": "1.5s", "failOnDataLoss": "FALSE"}
    )
    assert read.urls == ("nsq+lookupd://[::1]:4161",)
    assert read.segment_linger == 1.5
    assert not read.fail_on_data_loss


def test_an_external_spool_is_kept_unless_its_only_reader_says_otherwise() -> None:
    assert not options.stream_read({"spoolDir": "s", "collector": "External"}).trim
    assert options.stream_read({"spoolDir": "s", "collector": "external", "retention": "commit"}).trim


@pytest.mark.parametrize(
    ("name", "value", "answer"),
    [
        ("maxMessagePerTriger", "5", "did you mean maxMessagesPerTrigger"),
        ("spool", "s", "did you mean spoolDir"),
        ("xyz", "1", "which has spoolDir, collector,"),
        ("subscribe", "orders", "say topic"),
        ("kafka.bootstrap.servers", "k:9092", "say nsqdTcpAddresses or lookupdHttpAddresses"),
        ("maxOffsetsPerTrigger", "5", "say maxMessagesPerTrigger"),
        ("startingTimestamp", "1717200000000", "a time with its zone is needed, such as 2024-06-01T00:00:00Z"),
        ("startingTimestamp", "2024-06-01T00:00:00", "a time with its zone is needed"),
        ("startingOffsetsByTimestamp", "{}", "say startingTimestamp"),
        ("endingOffsets", "latest", "NSQ cannot replay"),
        ("startingOffsets", '{"orders":{"0":23}}', "NSQ cannot replay"),
        ("path", "/x", "say spoolDir"),
        ("maxMessagesPerTrigger", "0", "at least 1"),
        ("maxMessagesPerTrigger", "many", "maxMessagesPerTrigger='many': a whole number"),
        ("minPartitions", "1e3", "a whole number"),
        ("failOnDataLoss", "yes", "true or false"),
        ("collector", "both", "embedded or external"),
        ("retention", "3d", "commit or keep"),
        ("segmentLinger", "5", "such as 250ms or 2s"),
        ("nsqdTcpAddresses", "a", "'a' is not host:port"),
        ("nsqdTcpAddresses", "http://a:4150", "is not host:port"),
        ("nsqdTcpAddresses", " ", "is empty"),
        ("topic", "bad topic", "topic name 'bad topic' is not valid"),
        ("spoolDir", "", "spoolDir is empty"),
        (
            "spoolDir",
            "ftp://host/spool",
            "option spoolDir: 'ftp://host/spool' is a URL: give a path, or a URL that",
        ),
        ("spoolDir", "dbfs:/spool", "'dbfs:/spool' is a URL"),
        ("lookupdHttpAddresses", "l:4161", "exactly one of"),
    ],
)
def test_a_wrong_option_is_answered_in_one_sentence(name: str, value: str, answer: str) -> None:
    with pytest.raises(WrongUse, match=answer) as error:
        options.stream_read({**EMBEDDED, name: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        ("2023-11-14T22:13:20Z", 0),
        ("2023-11-14T22:13:20.5Z", 500_000_000),
        ("2023-11-14T22:13:20.123456789Z", 123_456_789),  # rows of up to 999 ns before came as well
        ("2023-11-14T22:13:20,123456789+00:00", 123_456_789),
        (" 2023-11-14T23:13:20.1234567+01:00 ", 123_456_700),
        ("2023-11-14T21:13:20.123456000-01:00", 123_456_000),
        ("2023-11-14T22:13:20.12345678900Z", 123_456_789),
        ("2023-11-14T22:13:20.1234567890001Z", 123_456_790),
        ("2023-11-14T22:13:20.999999999999Z", 1_000_000_000),
    ],
)
def test_a_beginning_is_heeded_to_the_nanosecond(value: str, ns: int) -> None:
    assert options.stream_read({**EMBEDDED, "startingTimestamp": value}).from_time == 1_700_000_000_000_000_000 + ns


def test_a_beginning_before_1970_is_heeded_to_the_nanosecond_too() -> None:
    assert options.stream_read({**EMBEDDED, "startingTimestamp": "1969-12-31T23:59:59.999999001Z"}).from_time == -999


def test_one_beginning_is_enough() -> None:
    with pytest.raises(WrongUse, match="startingOffsets and startingTimestamp say two beginnings: leave one out"):
        options.stream_read({**EMBEDDED, "startingOffsets": "latest", "startingTimestamp": "2024-06-01T00:00:00Z"})


@pytest.mark.parametrize("name", ["spoolDir", "topic", "channel", "nsqdTcpAddresses"])
def test_what_the_embedded_collector_needs_is_asked_for(name: str) -> None:
    with pytest.raises(WrongUse, match=name):
        options.stream_read(without(name))


def test_options_without_effect_are_refused() -> None:
    with pytest.raises(WrongUse, match="option topic has no effect with collector=external"):
        options.stream_read({"spoolDir": "s", "collector": "external", "topic": "orders"})
    with pytest.raises(WrongUse, match="option maxMessagesPerTrigger is for readStream"):
        options.batch_read({"spoolDir": "s", "maxmessagespertrigger": "5"})
    with pytest.raises(WrongUse, match="collector='embedded' is for readStream"):
        options.batch_read({"spoolDir": "s", "collector": "embedded"})


def test_the_ids_that_commit_leaves_may_be_said_for_external_collectors() -> None:
    external = {"spoolDir": "s", "collector": "external", "dedupeWindow": "1000"}
    assert options.stream_read({**external, "retention": "commit"}).dedupe_window == 1000
    with pytest.raises(WrongUse, match="dedupeWindow has no effect with collector=external and retention=keep"):
        options.stream_read(external)


def test_a_segment_is_never_larger_than_what_may_be_in_flight() -> None:
    assert options.stream_read({**EMBEDDED, "maxInFlight": "100"}).segment_max_messages == 100
    with pytest.raises(WrongUse, match="segmentMaxMessages=2000 can never fill with maxInFlight=1000"):
        options.stream_read({**EMBEDDED, "maxInFlight": "1000", "segmentMaxMessages": "2000"})


def test_the_sink_has_its_own_options() -> None:
    write = options.write({"nsqdTcpAddresses": "a:4150", "topic": "t", "checkpointLocation": "/c", "mpubMaxMessages": "7"})
    assert (write.urls, write.topic, write.mpub_max_messages) == (("nsq://a:4150",), "t", 7)
    assert options.write({"nsqdTcpAddresses": "a:4150"}).mpub_max_messages == 500, "as docs/spark.md says"
    with pytest.raises(WrongUse, match="spoolDir is unknown"):
        options.write({"nsqdTcpAddresses": "a:4150", "spoolDir": "s"})
    with pytest.raises(WrongUse, match="exactly one of"):
        options.write({"topic": "t"})


def test_the_documentation_lists_the_options_as_they_are() -> None:
    text = DOCUMENT.read_text()
    assert options.as_markdown(options.STREAM_READ) in text
    assert options.as_markdown(options.WRITE) in text
