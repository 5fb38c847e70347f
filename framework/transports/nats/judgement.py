"""What streams and consumers that somebody else made would do to a handler, in sentences for ``workers check``. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framework.transports.nats.streams import NANO, Consumer, Stream, StreamConfig
from framework.transports.nats.urls import SHORTEST, Options

FEW = 1000
"""Messages that one handler holds at most by default."""


def obstacles(stream: Stream, consumer: Consumer | None, others: Sequence[Consumer], topic: str) -> Iterator[str]:
    """Why a handler of ``topic`` cannot be served; ``others``: the consumers of a stream that has none for it yet."""
    if consumer is not None:
        yield from filter(None, [refusal(consumer, topic)])
    elif stream.config.retention == "workqueue":
        rivals = [other.name for other in others if _filters(other) in ([], [topic])]
        if rivals:
            yield (
                f"stream {stream.config.name} is a work queue, whose consumer {rivals[0]} takes {topic} already: "
                f"name channel {rivals[0]}, or give the stream retention=limits"
            )


def refusal(found: Consumer, topic: str) -> str:
    """Why ``found`` cannot serve a handler of ``topic``; empty: it can."""
    config = found.config
    what = f"consumer {found.name} of stream {found.stream_name}"
    if config.deliver_subject:
        return f"{what} pushes (deliver_subject={config.deliver_subject}), and a worker pulls: name another channel"
    if config.ack_policy != "explicit":
        return f"{what} has ack_policy={config.ack_policy}, and a worker acknowledges each message: name another channel"
    if config.headers_only:
        return f"{what} leaves bodies out (headers_only), and a handler needs them: name another channel"
    if _filters(found) not in ([], [topic]):
        return f"{what} is of {', '.join(_filters(found))} and not of {topic}: name another channel"
    return ""


def notes(stream: Stream, consumer: Consumer | None, options: Options) -> Iterator[str]:
    """What may surprise, and is no reason not to start."""
    yield from _of_stream(stream.config)
    if consumer is not None:
        yield from _of_consumer(consumer, options)


def _of_stream(config: StreamConfig) -> Iterator[str]:
    what = f"stream {config.name}"
    limits = {"max_msgs": config.max_msgs, "max_bytes": config.max_bytes, "max_msgs_per_subject": config.max_msgs_per_subject}
    full = [f"{name}={limit}" for name, limit in limits.items() if limit > 0]
    if config.max_age:
        yield f"{what} drops what is older than {config.max_age / NANO:g} s (max_age), handled or not"
    if full and config.discard == "old":
        yield f"{what} drops the oldest message when it is full ({', '.join(full)}, discard=old), handled or not"
    if config.retention == "interest":
        yield f"{what} has retention=interest: what comes before a channel's first worker is gone"
    if config.retention == "limits" and not (config.max_age or full):
        yield f"{what} keeps what was handled for ever (retention=limits, and no max_age or max_bytes)"


def _of_consumer(consumer: Consumer, options: Options) -> Iterator[str]:
    config, what = consumer.config, f"consumer {consumer.name} of stream {consumer.stream_name}"
    if config.max_deliver > 0:
        yield f"{what} ends after {config.max_deliver} deliveries without a dead letter (max_deliver): set it to -1"
    if 0 < config.max_ack_pending < FEW:
        yield f"{what} lets all workers together hold {config.max_ack_pending} messages (max_ack_pending)"
    if consumer.lease < SHORTEST:
        yield (
            f"{what} has a lease of {consumer.lease:g} s, which is too short to be kept while a handler runs: "
            f"let ack_wait, and what backoff has, be {SHORTEST:g} s at least"
        )
    elif consumer.lease != options.ack_wait:
        yield f"{what} has a lease of {consumer.lease:g} s (ack_wait), and keeps it whatever the broker URL says"


def _filters(consumer: Consumer) -> list[str]:
    config = consumer.config
    return [config.filter_subject] if config.filter_subject else config.filter_subjects
