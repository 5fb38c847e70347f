"""What a beanstalkd answers in place of what was asked for, as the exceptions that the client raises."""

from __future__ import annotations

from framework.errors import BrokerError


class BeanstalkdError(BrokerError):
    """The server answered with an error; ``code`` is its word."""


class BadFormat(BeanstalkdError):
    """BAD_FORMAT: a line that the server cannot read."""


class Buried(BeanstalkdError):
    """BURIED, to a put or a release: the server had no memory to queue the job ``id``, and keeps it until it is kicked."""

    def __init__(self, code: str, *, job: int) -> None:
        super().__init__(code, str(job), fatal=False)
        self.id = job


class DeadlineSoon(BeanstalkdError):
    """DEADLINE_SOON, to a reserve: a job that this client holds has less than a second left; touch or settle it first."""


class Draining(BeanstalkdError):
    """DRAINING, to a put: the server takes no more jobs until it is started again."""


class ExpectedCRLF(BeanstalkdError):
    """EXPECTED_CRLF: a body does not end where its put said."""


class InternalError(BeanstalkdError):
    """INTERNAL_ERROR."""


class JobTooBig(BeanstalkdError):
    """JOB_TOO_BIG: a body is over the server's -z."""


class NotFound(BeanstalkdError):
    """NOT_FOUND: no such job or tube, or the job is not this client's (any more)."""


class NotIgnored(BeanstalkdError):
    """NOT_IGNORED: the last tube that is watched."""


class OutOfMemory(BeanstalkdError):
    """OUT_OF_MEMORY."""


class TimedOut(BeanstalkdError):
    """TIMED_OUT: no job came within the timeout of a reserve."""


class UnknownCommand(BeanstalkdError):
    """UNKNOWN_COMMAND: an older server."""


BY_WORD: dict[str, type[BeanstalkdError]] = {
    "BAD_FORMAT": BadFormat, "DEADLINE_SOON": DeadlineSoon, "DRAINING": Draining, "EXPECTED_CRLF": ExpectedCRLF,
    "INTERNAL_ERROR": InternalError, "JOB_TOO_BIG": JobTooBig, "NOT_FOUND": NotFound, "NOT_IGNORED": NotIgnored,
    "OUT_OF_MEMORY": OutOfMemory, "TIMED_OUT": TimedOut, "UNKNOWN_COMMAND": UnknownCommand,
}  # fmt: skip
