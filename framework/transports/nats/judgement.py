"""What streams and consumers that somebody else made would do to a handler, in sentences for ``workers check``. No I/O here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from framework.transports.nats.streams import NANO, Account, Consumer, Stream, StreamConfig, Transform
from framework.transports.nats.urls import SHORTEST, Options

LONG_AWAY = 7 * 86_400
"""Seconds for which a worker may be missing: over a weekend, and over a week's holidays."""
FEW = 1000
"""Messages that one handler holds at most by default."""


class Wish(NamedTuple):
    """What a handler wants, and what its account may have."""

    topic: str
    options: Options
    account: Account = Account()


def obstacles(stream: Stream, consumer: Consumer | None, others: Sequence[Consumer], wish: Wish) -> Iterator[str]:
    """Why a handler cannot be served; ``others``: the consumers of a stream that has none for it yet."""
    config, topic = stream.config, wish.topic
    if (kept := _renamed(config, topic)) != topic:
        yield (
            f"stream {config.name} keeps what comes to {topic} as {kept} (subject_transform), and its consumers "
            f"of {topic} get nothing: take the transform out"
        )
    if consumer is not None:
        yield from filter(None, [refusal(consumer, topic, stream)])
        return
    if 0 < most_consumers(config, wish.account) <= len(others):
        yield f"stream {config.name} has as many consumers as it, or the account, may (max_consumers): allow more, or remove one"
    if 0 < (limit := config.consumer_limits.max_ack_pending) < wish.options.max_ack_pending:
        most = f"max_ack_pending={limit} at most (consumer_limits)"
        yield f"stream {config.name} has consumers of {most}: say that in the broker URL"
    if config.retention == "workqueue":
        rivals = [other.name for other in others if _filters(other) in ([], [topic])]
        if rivals:
            yield (
                f"stream {config.name} is a work queue, whose consumer {rivals[0]} takes {topic} already: "
                f"name channel {rivals[0]}, or give the stream retention=limits"
            )


def most_consumers(config: StreamConfig, account: Account) -> int:
    """How many a stream may have; less than 1: any."""
    return config.max_consumers if config.max_consumers > 0 else account.limits.max_consumers


def _renamed(config: StreamConfig, topic: str) -> str:
    """The subject under which the stream keeps what is published to ``topic``; what is no plain word of it as it is written."""
    transform = config.subject_transform
    if transform is None:
        return topic
    words, pattern = topic.split("."), (transform.src or ">").split(".")
    rest = words[len(pattern) - 1 :] if pattern[-1] == ">" else []
    fixed = pattern[:-1] if rest else pattern
    if len(words) != len(fixed) + len(rest) or any(mine not in ("*", word) for mine, word in zip(fixed, words, strict=False)):
        return topic
    wild = [word for mine, word in zip(fixed, words, strict=False) if mine == "*"]
    for number, word in enumerate(wild, 1):
        for written in (f"{{{{wildcard({number})}}}}", f"${number}"):
            transform = Transform(transform.src, transform.dest.replace(written, word))
    dest = transform.dest or ">"
    return ".".join([*dest.split(".")[:-1], *rest]) if dest.endswith(">") else dest


def refusal(found: Consumer, topic: str, stream: Stream | None) -> str:
    """Why ``found`` cannot serve a handler of ``topic``; empty: it can. ``stream``: its own, where it ``takes_all``."""
    config = found.config
    what = f"consumer {found.name} of stream {found.stream_name}"
    if config.deliver_subject:
        return f"{what} pushes (deliver_subject={config.deliver_subject}), and a worker pulls: name another channel"
    if config.ack_policy != "explicit":
        return f"{what} has ack_policy={config.ack_policy}, and a worker acknowledges each message: name another channel"
    if config.headers_only:
        return f"{what} leaves bodies out (headers_only), and a handler needs them: name another channel"
    if config.priority_groups:
        return f"{what} has priority groups, which a worker's pulls do not name: name another channel"
    if _filters(found) not in ([], [topic]):
        return f"{what} is of {', '.join(_filters(found))} and not of {topic}: name another channel"
    if takes_all(found) and stream is not None and _keeps_several(stream.config):
        # one of them may be that of what is stored for later: it would come at once, and again when it is due
        kept = ", ".join(stream.config.subjects) or "none of its own"
        return f"{what} is of all that the stream keeps ({kept}) and not of {topic} alone: give it filter_subject={topic}"
    return ""


def drops(config: StreamConfig, delay: float) -> str:
    """Why a message for later, which is due in ``delay`` seconds, would not be delivered; empty: it would."""
    what = f"stream {config.name}"
    if not config.allow_msg_schedules:
        return f"{what} keeps no publish for later: let it have allow_msg_schedules"
    if config.retention == "interest":
        return f"{what} has retention=interest, and drops what nobody takes yet: let it have another, or leave the delay out"
    if 0 < config.max_age <= delay * NANO:
        return f"{what} drops what is older than {config.max_age / NANO:g} s (max_age), and this is due in {delay:g} s"
    return ""


def takes_all(found: Consumer) -> bool:
    return not _filters(found)


def _keeps_several(config: StreamConfig) -> bool:
    return len(config.subjects) > 1 or any(wild in one for one in config.subjects for wild in "*>") or bool(config.sources)


def notes(stream: Stream, consumer: Consumer | None, options: Options) -> Iterator[str]:
    """What may surprise, and is no reason not to start."""
    yield from _of_stream(stream.config)
    yield from _not_as_told(stream.config, options)
    if consumer is not None:
        yield from _of_consumer(consumer, options)
    else:
        yield from notes_before(options)


def notes_before(options: Options) -> Iterator[str]:
    """As ``notes``, where no consumer is there yet."""
    if options.max_ack_pending < FEW:
        yield f"max_ack_pending={options.max_ack_pending} of the broker URL lets all workers together hold so many messages"


def _of_stream(config: StreamConfig) -> Iterator[str]:
    what = f"stream {config.name}"
    limits = {"max_msgs": config.max_msgs, "max_bytes": config.max_bytes, "max_msgs_per_subject": config.max_msgs_per_subject}
    full = [f"{name}={limit}" for name, limit in limits.items() if limit > 0]
    per_subject = config.max_msgs_per_subject > 0
    if config.max_age:
        yield f"{what} drops what is older than {config.max_age / NANO:g} s (max_age), handled or not"
    if full and config.discard == "old":
        yield f"{what} drops the oldest message when it is full ({', '.join(full)}, discard=old), handled or not"
    elif per_subject and not config.discard_new_per_subject:
        few = f"max_msgs_per_subject={config.max_msgs_per_subject}"
        yield f"{what} drops the oldest message of a subject ({few}, without discard_new_per_subject), handled or not"
    elif full and config.retention == "limits" and not config.max_age:
        yield f"{what} is filled by what was handled too, and takes nothing more then ({', '.join(full)}, discard=new)"
    if config.sealed:
        yield f"{what} takes no more messages (sealed)"
    if config.storage == "memory":
        yield f"{what} keeps messages in memory (storage): a restart of nats-server loses them"
    if config.persist_mode == "async":
        yield f"{what} confirms messages before they are written (persist_mode=async): a kill of nats-server loses some"
    if config.no_ack:
        yield f"{what} answers no publish (no_ack): each ends with stored=None when its time is over"
    if config.retention == "interest":
        yield f"{what} has retention=interest: what comes before a channel's first worker is gone"
    if config.retention == "limits" and not (config.max_age or full):
        yield f"{what} keeps what was handled for ever (retention=limits, and no max_age or max_bytes)"


def _not_as_told(config: StreamConfig, options: Options) -> Iterator[str]:
    """What a URL asks for beyond the defaults, and the stream was not made with."""
    kept = "and keeps that whatever the broker URL says"
    if options.retention != config.retention and options.retention != StreamConfig().retention:
        yield f"stream {config.name} has retention={config.retention}, {kept}"
    if options.replicas > config.num_replicas:
        yield f"stream {config.name} has num_replicas={config.num_replicas}, {kept}"


def _of_consumer(consumer: Consumer, options: Options) -> Iterator[str]:
    config, what = consumer.config, f"consumer {consumer.name} of stream {consumer.stream_name}"
    if consumer.paused:
        yield f"{what} is paused (pause_until): nothing is delivered until that is over"
    if config.inactive_threshold and config.inactive_threshold < LONG_AWAY * NANO:
        away = config.inactive_threshold / NANO
        yield f"{what} is deleted when no worker pulls for {away:g} s (inactive_threshold); what was handled then comes again"
    if config.mem_storage:
        yield f"{what} keeps in memory what was handled (mem_storage): after a restart of nats-server that comes again"
    if config.deliver_policy not in ("", "all"):
        yield f"{what} began with deliver_policy={config.deliver_policy}: messages from before that are not handled"
    if config.max_deliver > 0:
        times = "1 delivery" if config.max_deliver == 1 else f"{config.max_deliver} deliveries"
        yield f"{what} ends after {times} without a dead letter (max_deliver): set it to -1"
    if 0 < config.max_ack_pending < max(FEW, options.max_ack_pending):
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
