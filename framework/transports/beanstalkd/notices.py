"""What is said of jobs that a beanstalkd refuses, buries or loses: log lines, and words for the engine."""

from __future__ import annotations

from framework.message import Message
from framework.observe import hublog

log = hublog.get(__name__)


def number_of(message: Message) -> str:
    """The server's number of a job."""
    return message.id.decode().partition("@")[0]


def say_torn(node: str, tube: str, message: Message) -> None:
    log.error(
        "beanstalkd %s lost the body of job %s of tube %s when it was killed: %d bytes that end in zeros; it is buried there",
        node, number_of(message), tube, len(message.body),
    )  # fmt: skip


def say_buried(node: str, tube: str, message: Message) -> None:
    words = "beanstalkd %s had no memory to release job %s: it is buried in tube %s, kick it there"
    log.error(words, node, number_of(message), tube)


def refused(verb: str, message: Message) -> str:
    return f"beanstalkd answered {verb} {number_of(message)} with NOT_FOUND"


def stranded(verb: str, message: Message) -> str:
    return f"beanstalkd has no room in its log to {verb} job {number_of(message)}, and keeps it until it is restarted"
