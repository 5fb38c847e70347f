"""``workers publish``: every line is published or counted, and the count and exit code say which."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from framework.testing import servers
from framework.testing.proxy import Proxy
from framework.testing.servers import Server
from framework.testing.workers import call, command, environment

pytestmark = pytest.mark.real


def broker(nsqd: Server, query: str = "") -> str:
    return f"nsq://{nsqd.address}{query}"


def messages(nsqd: Server, topic: str = "lines") -> int:
    return sum(one["message_count"] for one in nsqd.http(f"/stats?format=json&topic={topic}")["topics"] or [])


def test_each_line_is_a_message_and_the_count_is_definite(nsqd: Server, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"".join(b"line %d\r\n" % n for n in range(2500)) + b"\n\nlast, without an end")
    done = call("publish", "lines", "log", "--broker", broker(nsqd), "--summary", "counts.json", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == "published 2501 of 2503 lines to lines; refused 2 empty (lines 2501, 2502), 0 oversized; 0 unreadable\n"
    assert done.stderr == ""
    assert json.loads((tmp_path / "counts.json").read_text()) == {
        "input_lines": 2503, "published": 2501, "in_doubt": 0, "empty": 2, "oversized": 0, "unreadable": 0,
    }  # fmt: skip
    assert messages(nsqd) == 2501


def test_standard_input_is_read_when_no_file_is_named(nsqd: Server, tmp_path: Path) -> None:
    for arguments in ((), ("-",)):
        done = call("publish", "lines", *arguments, "--broker", broker(nsqd), cwd=tmp_path, stdin=b"one\ntwo\n")
        assert done.stdout.startswith("published 2 of 2 lines")
    assert messages(nsqd) == 4
    assert call("publish", "lines", "--broker", broker(nsqd), cwd=tmp_path).stdout.startswith("published 0 of 0 lines")


def test_lines_of_a_slow_pipe_are_published_as_they_come(nsqd: Server, tmp_path: Path) -> None:
    with subprocess.Popen(
        command("publish", "lines", "--broker", broker(nsqd)),
        cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nthr")
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while messages(nsqd) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.stdin.write(b"ee\n")
        assert process.communicate(timeout=20)[0].startswith(b"published 3 of 3 lines")
        assert process.returncode == 0


def test_a_gzip_is_read_as_text(nsqd: Server, tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    assert call("publish", "lines", "log.gz", "--broker", broker(nsqd), cwd=tmp_path).returncode == 0
    assert messages(nsqd) == 2


def test_of_half_a_gzip_what_can_be_read_is_published_and_the_rest_is_exit_4(nsqd: Server, tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(os.urandom(30).hex().encode() + b"\n" for _ in range(5000)))
    (tmp_path / "log.gz").write_bytes(whole[: len(whole) // 2])
    done = call("publish", "lines", "log.gz", "--broker", broker(nsqd), "--summary", "counts.json", cwd=tmp_path)
    assert done.returncode == 4
    assert "log.gz ends in the middle of its gzip stream: what could be read before that is published" in done.stderr
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert counts["published"] == messages(nsqd) > 1000
    assert counts["input_lines"] == counts["published"] + counts["unreadable"]
    assert counts["unreadable"] in (0, 1)


def test_a_closed_standard_input_is_exit_2(tmp_path: Path) -> None:
    line = shlex.join(command("publish", "lines", "--broker", "nsq://127.0.0.1:1")) + " <&-"
    done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "workers: standard input is closed: name a text file, plain or .gz\n"


@pytest.mark.parametrize("query", ["", "?max_msg_size=100000"])
def test_a_line_that_is_too_large_is_counted_and_the_others_are_published(
    start_nsqd: Callable[..., Server], tmp_path: Path, query: str
) -> None:
    """Both where the limit is known and refused here, and where only the server knows it."""
    nsqd = start_nsqd("--max-msg-size=100000")
    (tmp_path / "log").write_bytes(b"one\n" + b"x" * 100_001 + b"\n" + b"y" * 100_000 + b"\nfour\n" + b"z" * 900_000 + b"\nsix\n")
    done = call("publish", "lines", "log", "--broker", broker(nsqd, query), cwd=tmp_path)
    assert done.returncode == 4
    assert done.stdout == "published 4 of 6 lines to lines; refused 0 empty, 2 oversized (lines 2, 5); 0 unreadable\n"
    assert messages(nsqd) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lines", "no/such.log"], "no/such.log cannot be read: No such file or directory"),
        (["lines", "."], ". cannot be read: Is a directory"),
        (["lines", "empty"], "empty is empty: there is nothing to publish"),
        (["lines", "empty.gz"], "empty.gz is empty: there is nothing to publish"),
        (["lines", "binary"], "binary is binary, not lines of text"),
        (["lines", "stub.gz"], "stub.gz ends in the middle of its gzip stream, and not one line of it can be read"),
        (["a b", "good"], "topic name 'a b' is not valid"),
        (["lines", "good", "--summary", "no/such/counts.json"], "--summary no/such/counts.json cannot be written"),
        (["lines", "good", "more"], "unexpected extra argument"),
        ([], "Missing argument 'TOPIC'"),
    ],
)
def test_an_input_that_cannot_be_used_is_one_sentence_and_exit_2(
    arguments: list[str], words: str, nsqd: Server, tmp_path: Path
) -> None:
    (tmp_path / "good").write_text("one\n")
    (tmp_path / "empty").touch()
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "stub.gz").write_bytes(gzip.compress(b"one\ntwo\n")[:12])
    (tmp_path / "binary").write_bytes(os.urandom(5000))
    done = call("publish", *arguments, "--broker", broker(nsqd), cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert nsqd.http("/stats?format=json")["topics"] == []


def test_no_broker_is_exit_3_after_the_deadline(tmp_path: Path) -> None:
    address = f"nsq://127.0.0.1:{servers.free_port()}"
    done = call("publish", "lines", "--broker", address, "--connect-deadline", "2s", cwd=tmp_path, stdin=b"one\n")
    assert done.returncode == 3
    assert "cannot be reached" in done.stderr


def test_a_broker_that_goes_away_is_exit_3_with_the_count_so_far(nsqd: Server, tmp_path: Path) -> None:
    with subprocess.Popen(
        command("publish", "lines", "--broker", broker(nsqd)),
        cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while messages(nsqd) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        nsqd.kill()
        process.stdin.write(b"three\n")
        said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 3, said
    assert "2 messages had been published to lines" in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_the_count_so_far(number: signal.Signals, code: int, nsqd: Server, tmp_path: Path) -> None:
    with subprocess.Popen(
        command("publish", "lines", "--broker", broker(nsqd)),
        cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while messages(nsqd) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        said = process.communicate(timeout=20)[1].decode()
    assert process.returncode == code, said
    known = "2 messages had been published to lines"
    before_the_answer = "0 messages had been published to lines, and it is not known whether the next 2 were"
    assert said in {f"workers: {number.name} came; {count}\n" for count in (known, before_the_answer)}


def counts(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "counts.json").read_text())
    return found


def test_frozen_nodes_among_healthy_ones_are_passed_over(start_nsqd: Callable[..., Server], tmp_path: Path) -> None:
    nodes = [start_nsqd() for _ in range(3)]
    with nodes[0].frozen(), nodes[1].frozen():
        done = call(
            "publish", "lines", *(f"--broker={broker(node)}" for node in nodes), "--summary=counts.json",
            cwd=tmp_path, stdin=b"one\ntwo\n",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert counts(tmp_path)["published"] == 2
    assert messages(nodes[2]) == 2


def test_a_node_that_freezes_leaves_a_definite_count_and_a_summary(nsqd: Server, tmp_path: Path) -> None:
    with subprocess.Popen(
        command("publish", "lines", "--broker", broker(nsqd), "--summary=counts.json", "--publish-timeout=500ms"),
        cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(b"one\n\ntwo\n")
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while messages(nsqd) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with nsqd.frozen():
            said = process.communicate(b"three\nfour\nfive\n", timeout=20)[1].decode()
    assert process.returncode == 3, said
    assert "2 messages had been published to lines, and it is not known whether the next 3 were" in said
    assert counts(tmp_path) == {
        "input_lines": 6, "published": 2, "in_doubt": 3, "empty": 1, "oversized": 0, "unreadable": 0,
    }  # fmt: skip


@pytest.mark.parametrize("how", ["cut off", "silent"])
def test_what_a_node_may_have_stored_when_it_went_away_is_published_to_another_and_counted(
    how: str, start_nsqd: Callable[..., Server], start_proxy: Callable[[str], Proxy], tmp_path: Path
) -> None:
    nodes = [start_nsqd(), start_nsqd()]
    proxies = [start_proxy(node.address) for node in nodes]
    addresses = [f"--broker=nsq://{proxy.address}" for proxy in proxies]
    with subprocess.Popen(
        command("publish", "lines", *addresses, "--summary=counts.json", "--publish-timeout=2s"),
        cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        wait_until(lambda: sum(map(messages, nodes)) == 2)
        used = 0 if messages(nodes[0]) else 1
        proxies[used].to_client.hold()
        process.stdin.write(b"three\nfour\nfive\n")
        process.stdin.flush()
        wait_until(lambda: messages(nodes[used]) == 5)  # stored, and the answer is on its way
        if how == "cut off":
            proxies[used].refuse()
            proxies[used].cut()
        out, said = (each.decode() for each in process.communicate(timeout=30))
    assert process.returncode == 0, said
    assert out == "published 5 of 5 lines to lines, 3 of them perhaps twice; refused 0 empty, 0 oversized; 0 unreadable\n"
    assert (messages(nodes[used]), messages(nodes[1 - used])) == (5, 3)
    assert (counts(tmp_path)["published"], counts(tmp_path)["in_doubt"]) == (5, 3)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_summary_is_written_whatever_happens(tmp_path: Path) -> None:
    nobody = f"--broker=nsq://127.0.0.1:{servers.free_port()}"
    for arguments, stdin, code, lines in [
        ((nobody, "--connect-deadline=0"), b"one\ntwo\n", 3, 2),
        (("no such file", nobody), b"", 2, 0),
        ((nobody,), b"\0\0\0\n", 2, 0),
    ]:
        (tmp_path / "counts.json").write_text('{"published": 100}')
        done = call("publish", "lines", *arguments, "--summary=counts.json", cwd=tmp_path, stdin=stdin)
        assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
        assert (counts(tmp_path)["input_lines"], counts(tmp_path)["published"]) == (lines, 0)
