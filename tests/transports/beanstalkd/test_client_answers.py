"""The client of beanstalkd and what a real server cannot be made to say: which answers close it, and how commands are cut up."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import BrokerUnreachable, ProtocolError
from framework.transports.beanstalkd import Client, Job, client, wire


class Scripted:
    """A server that answers each line with what comes next, and nothing at all once it has no more."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.lines: list[bytes] = []

    def __call__(self, sock: Any) -> None:
        for line in sock.makefile("rb"):
            self.lines.append(line)
            if self.answers:
                sock.sendall(self.answers.pop(0) + b"\r\n")


def test_a_reserve_without_an_end_is_asked_for_a_minute_at_a_time(listening: Callable[..., str]) -> None:
    server = Scripted(b"TIMED_OUT", b"TIMED_OUT", b"RESERVED 7 1\r\nx")
    with Client(listening(server)) as one:
        assert one.reserve() == Job(7, b"x")
    assert server.lines == [b"reserve-with-timeout 60\r\n"] * 3


@pytest.mark.parametrize(
    ("answer", "raised", "stays"),
    [
        (b"NOT_FOUND", client.NotFound, True),
        (b"OUT_OF_MEMORY", client.OutOfMemory, True),
        (b"BAD_FORMAT", client.BadFormat, False),
        (b"UNKNOWN_COMMAND", client.UnknownCommand, False),
        (b"KICKED 1", ProtocolError, False),
        (b"no answer at all", ProtocolError, False),
        (None, BrokerUnreachable, False),
    ],
)
def test_after_an_answer_that_may_be_followed_by_others_it_is_closed(
    listening: Callable[..., str], answer: bytes | None, raised: type[Exception], stays: bool
) -> None:
    server = Scripted(*([] if answer is None else [answer, b"USING orders"]))
    with Client(listening(server), timeout=20 if answer else 0.1) as one:
        with pytest.raises(raised) as caught:
            one.touch(1)
        if isinstance(caught.value, client.BeanstalkdError):
            assert caught.value.fatal is not stays
        if stays:
            assert one.using() == "orders"
        else:
            with pytest.raises(BrokerUnreachable, match="this client is closed: make a new one"):
                one.using()


def test_one_whose_server_reads_nothing_waits_for_as_long_as_it_was_told() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with Client(f"127.0.0.1:{silent.getsockname()[1]}", timeout=0.2) as one:
            with pytest.raises(BrokerUnreachable, match=r"did not answer within 0\.2 s"):
                one.put(b"x" * 50_000_000)
            with pytest.raises(BrokerUnreachable, match="closed"):
                one.using()


def test_a_job_that_is_buried_at_once_is_named(listening: Callable[..., str]) -> None:
    server = Scripted(b"BURIED 7", b"BURIED 9", b"INSERTED 10")
    with Client(listening(lambda sock: serve_puts(sock, server))) as one:
        with pytest.raises(client.Buried) as caught:
            one.put(b"x")
        first, second = one.put_many([b"x", b"y"])
    assert (caught.value.id, caught.value.fatal) == (7, False)
    assert isinstance(first, client.Buried)
    assert (first.id, second) == (9, 10)


def serve_puts(sock: Any, server: Scripted) -> None:
    stream = sock.makefile("rb")
    while line := stream.readline():
        stream.read(int(line.split()[4]) + 2)
        sock.sendall(server.answers.pop(0) + b"\r\n")


def test_a_pipeline_sends_so_many_commands_at_once_and_reads_their_answers_before_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "WINDOW", 3)
    done: list[Any] = []
    stub: Any = SimpleNamespace(
        _alone=nullcontext,
        _send=lambda commands: done.append(commands.count(b"\r\n")),
        _answer=lambda words, job: done.append(job) or wire.Reply(words[0], 5),
    )
    with client.Pipeline(stub) as pipeline:
        for job in range(100, 107):
            pipeline.release(job)
    assert done == [3, 100, 101, 102, 3, 103, 104, 105, 1, 106]
    assert pipeline.results == [0] * 7
    done.clear()
    with client.Pipeline(stub):
        pass
    assert done == [], "where nothing is said nothing is sent"
    with pytest.raises(KeyError), client.Pipeline(stub) as pipeline:
        pipeline.touch(1)
        raise KeyError
    assert done == [], "nor where its block fails"
