"""``workers dead``: counts that are right, letters that stay when they are only looked at, and a replay that loses none."""

from __future__ import annotations

import json
import os
import pty
import random
import shlex
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.message import Message
from framework.middleware.dead_letter import letters, traceback_of
from framework.publisher import Publisher
from framework.testing.servers import Server, free_port
from framework.testing.workers import call, command, environment

pytestmark = pytest.mark.real

TOPIC = "orders.billing.dead"


def letter(number: int, reason: str = "ValueError: odd", body: bytes = b"") -> bytes:
    origin = SimpleNamespace(topic="orders", channel="billing", node="a:4150")
    message = Message(b"%016x" % number, 1_700_000_000_000_000_000, 4, body or b"body %d" % number, origin)
    try:
        raise ValueError("odd")
    except ValueError as error:
        return next(letters(message, reason, traceback_of(error)))


def hex_id(number: int) -> str:
    return f"{number:016x}"


def url(nsqd: Server) -> str:
    return f"nsq://{nsqd.address}?http_port={nsqd.http_port}"


def put(nsqd: Server, *bodies: bytes, topic: str = TOPIC) -> None:
    publisher = Publisher(url(nsqd))
    publisher.publish_many(topic, list(bodies))
    publisher.close()


def kept(nsqd: Server) -> dict[str, int]:
    [topic] = nsqd.http(f"/stats?format=json&topic={TOPIC}")["topics"]
    counts = Counter({name: sum(one[name] for one in topic["channels"]) for name in untouched(0)})
    counts["depth"] += topic["depth"]  # what its channel has not been given yet
    return dict(counts)


def untouched(count: int) -> dict[str, int]:
    return {"depth": count, "in_flight_count": 0, "deferred_count": 0, "timeout_count": 0}


def assert_untouched(nsqd: Server, count: int) -> None:
    """nsqd may still be at what it was told last, or have a message between its hands."""
    deadline = time.monotonic() + 10
    while kept(nsqd) != untouched(count) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert kept(nsqd) == untouched(count)


def channel(nsqd: Server, name: str = "billing") -> None:
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http(f"/channel/create?topic=orders&channel={name}", b"")


def test_while_one_of_two_nodes_is_down_the_other_ones_letters_are_shown_and_it_is_named(nsqd: Server, tmp_path: Path) -> None:
    put(nsqd, *(letter(number) for number in range(3)))
    gone = f"127.0.0.2:{free_port()}"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return call(*words, "--broker", f"nsq://{nsqd.address},{gone}?http_port={nsqd.http_port}", cwd=tmp_path)

    counted = run("dead", "list", "--json")
    listed = run("dead", "list", "orders/billing")
    shown = run("dead", "show", hex_id(1))
    missing = run("dead", "show", hex_id(7))
    purged = run("dead", "purge", "orders/billing", "--yes", "--connect-deadline", "0.5")
    assert json.loads(counted.stdout) == {"dead_topic": TOPIC, "channel": "dead", "letters": 3}
    assert "3 of 3 letters" in listed.stdout
    assert "body 1" in shown.stdout
    assert [one.returncode for one in (counted, listed, shown, missing, purged)] == [4, 4, 0, 4, 3]
    for one in (counted, listed, shown, missing):
        assert one.stderr.count(gone) == one.stderr.count("what is kept there cannot be shown") == 1
    assert_untouched(nsqd, 3)


@pytest.fixture
def dead(nsqd: Server, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``dead("list", "orders/billing")``."""
    return lambda *arguments: call("dead", *arguments, "--broker", url(nsqd), cwd=tmp_path)


Dead = Callable[..., Any]


def test_list_counts_every_dead_letter_topic_and_touches_none(nsqd: Server, dead: Dead) -> None:
    put(nsqd, letter(1), letter(2))
    put(nsqd, letter(3), topic="orders.audit.dead")
    put(nsqd, b"alive", topic="orders")
    done = dead("list")
    assert done.returncode == 0
    assert done.stdout == "       1  orders.audit.dead\n       2  orders.billing.dead\n3 letters in 2 dead letter topics\n"
    lines = [json.loads(line) for line in dead("list", "--json").stdout.splitlines()]
    assert lines[1] == {"dead_topic": "orders.billing.dead", "channel": "dead", "letters": 2}
    assert all(not one["channels"] for one in nsqd.http("/stats?format=json")["topics"])


def test_list_counts_for_the_handlers_of_a_module(nsqd: Server, dead: Dead, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        'from framework import handler\n@handler("orders", "billing")\ndef f(m: bytes): ...\n'
        '@handler("orders", "audit")\ndef g(m: bytes): ...\n'
    )
    put(nsqd, letter(1))
    put(nsqd, letter(2), topic="strangers.dead")
    done = dead("list", "-m", "shop")
    assert done.stdout == "       1  orders.billing.dead\n       0  orders.audit.dead\n1 letter in 2 dead letter topics\n"


def test_list_shows_letters_and_leaves_them(nsqd: Server, dead: Dead) -> None:
    put(nsqd, letter(1, "ValueError: odd"), letter(2, "Reject: \x1b[31mred"), letter(3, "KeyError: 'x'"))
    done = dead("list", "orders/billing")
    assert done.returncode == 0
    head, *rows, summary = done.stdout.splitlines()
    assert head.split() == ["ID", "DIED", "ATTEMPTS", "REASON"]
    assert summary == "3 of 3 letters in orders.billing.dead"
    assert [row.split()[0] for row in rows] == [hex_id(n) for n in (1, 2, 3)]
    assert rows[0].endswith("4  ValueError: odd")
    assert rows[1].endswith(r"Reject: \x1b[31mred")
    assert_untouched(nsqd, 3)


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (["--reason", "keyERROR"], 2),
        (["--id", hex_id(1), "--id", hex_id(2)], 2),
        (["--since", "1h"], 5),
        (["--before", "1h"], 0),
        (["--before", "2999-01-01"], 5),
        (["--since", "2026-05-01T18:30+02:00", "--reason", "odd"], 3),
        (["--limit", "4"], 4),
        (["--reason", "keyerror", "--limit", "1"], 1),
    ],
)
def test_filters_choose_what_is_listed(filters: list[str], count: int, nsqd: Server, dead: Dead) -> None:
    put(nsqd, *(letter(n, "KeyError: 'x'" if n < 2 else "ValueError: odd") for n in range(5)))
    done = dead("list", TOPIC, *filters, "--json")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == count
    assert done.stderr == f"{count} of 5 letters in {TOPIC}\n"
    assert_untouched(nsqd, 5)


def test_show_prints_all_that_is_known(nsqd: Server, dead: Dead) -> None:
    put(nsqd, letter(1), letter(2, body=bytes(range(40))))
    text = dead("show", hex_id(1))
    assert text.returncode == 0
    for words in (
        "topic      orders\n", "channel    billing\n", "node       a:4150\n", "attempts   4\n",
        "published  2023-11-14 22:13:20.000Z\n", "reason     ValueError: odd\n", 'raise ValueError("odd")',
        "body       6 bytes\n  body 1\n",
    ):  # fmt: skip
        assert words in text.stdout
    dump = dead("show", hex_id(2), "orders/billing").stdout
    assert "  00000020  20 21 22 23 24 25 26 27                          | !\"#$%&'|\n" in dump
    [line] = dead("show", hex_id(2), "--json").stdout.splitlines()
    fields = json.loads(line)
    assert fields["body"] == bytes(range(40)).decode()
    assert "ValueError: odd" in fields["traceback"]
    assert_untouched(nsqd, 2)


def test_purge_deletes_what_was_chosen_and_counts_it(nsqd: Server, dead: Dead) -> None:
    put(nsqd, *(letter(n, "KeyError: 'x'" if n < 2 else "ValueError: odd") for n in range(5)))
    assert (
        dead("purge", "orders/billing", "--reason", "KeyError", "--dry-run").stdout == f"would purge 2 of 5 letters of {TOPIC}\n"
    )
    done = dead("purge", "orders/billing", "--reason", "KeyError", "--yes")
    assert (done.returncode, done.stdout) == (0, f"purged 2 of 5 letters of {TOPIC}; 3 kept\n")
    assert_untouched(nsqd, 3)
    [line] = dead("purge", "orders/billing", "--yes", "--json").stdout.splitlines()
    assert json.loads(line) == {"dead_topic": TOPIC, "purged": 3, "chosen": 3, "kept": 0}
    assert_untouched(nsqd, 0)


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 3), (b"y\n", 0)])
def test_purge_asks_on_a_terminal(answer: bytes, left: int, nsqd: Server, tmp_path: Path) -> None:
    put(nsqd, *map(letter, range(3)))
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("dead", "purge", "orders/billing", "--broker", url(nsqd)),
        cwd=tmp_path, env=environment(), stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        os.write(ours, answer)
        out, err = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0
    assert b"Delete all 3 letters of orders.billing.dead?" in err
    assert out == (b"" if left else b"purged 3 of 3 letters of orders.billing.dead; 0 kept\n")
    assert_untouched(nsqd, left)


def test_replay_publishes_the_bodies_where_they_came_from(nsqd: Server, dead: Dead) -> None:
    channel(nsqd)
    put(nsqd, *(letter(n, "KeyError: 'x'" if n < 2 else "ValueError: odd") for n in range(5)))
    assert dead("replay", "orders/billing", "--dry-run").stdout == f"would replay 5 of 5 letters of {TOPIC} to orders\n"
    assert_untouched(nsqd, 5)
    done = dead("replay", "orders/billing", "--reason", "KeyError")
    assert (done.returncode, done.stdout) == (0, f"replayed 2 of 5 letters of {TOPIC} to orders; 3 kept, 0 failed\n")
    assert_untouched(nsqd, 3)
    [line] = dead("replay", "orders/billing", "--json").stdout.splitlines()
    assert json.loads(line) == {
        "dead_topic": TOPIC, "to": ["orders"], "replayed": 3, "failed": 0, "kept": 0, "dry_run": False,
    }  # fmt: skip
    assert_untouched(nsqd, 0)
    assert bodies(nsqd) == sorted(b"body %d" % n for n in range(5))


def bodies(nsqd: Server) -> list[bytes]:
    """What waits for orders/billing, taken off it."""
    found = []
    with subprocess.Popen(
        command("tail", "orders", "--channel", "billing", "--broker", url(nsqd)),
        cwd=nsqd.data, env=environment(), stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for _ in range(nsqd.channel_stats("orders", "billing")["depth"]):
            found.append(process.stdout.readline().rstrip(b"\n"))
        process.terminate()
    return sorted(found)


def test_a_replay_that_other_channels_would_see_is_refused_and_changes_nothing(nsqd: Server, dead: Dead) -> None:
    channel(nsqd)
    channel(nsqd, "audit")
    put(nsqd, letter(1))
    done = dead("replay", "orders/billing")
    assert done.returncode == 2
    assert "topic 'orders' has the channels audit, billing: a message" in done.stderr
    assert "--all-channels" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert_untouched(nsqd, 1)
    assert nsqd.channel_stats("orders", "audit")["message_count"] == 0
    assert dead("replay", "orders/billing", "--to", "orders").returncode == 2
    nsqd.http("/topic/create?topic=corrections", b"")
    nsqd.http("/channel/create?topic=corrections&channel=billing", b"")
    assert dead("replay", "orders/billing", "--to", "corrections").returncode == 0
    assert nsqd.channel_stats("corrections", "billing")["depth"] == 1


def test_a_letter_that_cannot_be_replayed_is_exit_4_and_stays(nsqd: Server, dead: Dead) -> None:
    channel(nsqd)
    put(nsqd, b"only a body", letter(1))
    done = dead("replay", "orders/billing")
    assert done.returncode == 4
    assert done.stdout.startswith(f"replayed 1 of 2 letters of {TOPIC} to orders; 0 kept, 1 failed (only their bodies were kept")
    assert_untouched(nsqd, 1)


@pytest.mark.long_run
@pytest.mark.slow
def test_a_replay_killed_at_any_moment_loses_nothing(start_nsqd: Callable[..., Server], tmp_path: Path) -> None:
    nsqd = start_nsqd("--msg-timeout=4s")  # on a busy machine a second passed between a letter and its FIN
    channel(nsqd)
    count = 10_000
    put(nsqd, *map(letter, range(count)))
    kills = 0
    for _ in range(5):
        before = nsqd.channel_stats("orders", "billing")["message_count"]
        with subprocess.Popen(
            command("dead", "replay", "orders/billing", "--broker", url(nsqd)), cwd=tmp_path, env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            while nsqd.channel_stats("orders", "billing")["message_count"] == before and process.poll() is None:
                time.sleep(0.002)
            time.sleep(random.uniform(0, 0.05))
            if process.poll() is None:
                process.kill()
                kills += 1
    assert kills >= 2
    deadline = time.monotonic() + 60
    while kept(nsqd)["in_flight_count"]:  # of those that were killed, until their leases end
        assert time.monotonic() < deadline
        time.sleep(0.05)
    done = call("dead", "replay", "orders/billing", "--broker", url(nsqd), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert kept(nsqd)["depth"] == kept(nsqd)["in_flight_count"] == 0
    found = bodies(nsqd)
    assert set(found) == {b"body %d" % n for n in range(count)}
    assert len(found) <= count + kills * 200, "a killed replay repeats no more than was under way"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_gives_back_what_is_in_hand(number: signal.Signals, nsqd: Server, tmp_path: Path) -> None:
    count = 8_000  # within nsqd's memory, and in its channel before anybody looks
    nsqd.http(f"/topic/create?topic={TOPIC}", b"")
    nsqd.http(f"/channel/create?topic={TOPIC}&channel=dead", b"")
    put(nsqd, *map(letter, range(count)))
    assert_untouched(nsqd, count)
    with subprocess.Popen(
        command("dead", "list", "orders/billing", "--limit", str(2 * count), "--reason", "no such", "--broker", url(nsqd)),
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        while not nsqd.channel_stats(TOPIC, "dead").get("in_flight_count"):
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert_untouched(nsqd, count)


def test_it_ends_quietly_when_nobody_reads_its_output(nsqd: Server, tmp_path: Path) -> None:
    put(nsqd, *map(letter, range(5000)))
    with subprocess.Popen(
        command("dead", "list", "orders/billing", "--limit", "5000", "--broker", url(nsqd)),
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""
    assert_untouched(nsqd, 5000)


def test_letters_in_another_channel_are_counted_there_and_taken_only_when_told(nsqd: Server, dead: Dead) -> None:
    nsqd.http(f"/topic/create?topic={TOPIC}", b"")
    nsqd.http(f"/channel/create?topic={TOPIC}&channel=alerts", b"")
    put(nsqd, letter(1))
    assert "       1  orders.billing.dead (in its channel alerts)" in dead("list").stdout
    refused = dead("purge", "orders/billing", "--yes")
    assert refused.returncode == 2
    assert "the letters of orders.billing.dead are in its channel 'alerts', not in 'dead'" in refused.stderr
    assert dead("purge", "orders/billing", "--yes", "--channel", "alerts").stdout.startswith("purged 1 of 1")


def test_a_topic_that_does_not_exist_has_no_letters(nsqd: Server, dead: Dead) -> None:
    for verb in (["list"], ["replay"], ["purge", "--yes"]):
        done = dead(*verb, "orders/billing")
        assert done.returncode == 0
        assert "0 letters in orders.billing.dead: there is no such topic" in done.stdout
    assert nsqd.http("/stats?format=json")["topics"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "a b/c"], "topic name 'a b' is not valid"),
        (["list", "orders/billing", "--since", "yesterday"], "--since: 'yesterday' is not a time: write 2026-05-01"),
        (["list", "orders/billing", "--limit", "0"], "0 is not in the range"),
        (["list", "--reason", "odd"], "letters are chosen from a dead letter topic: name one"),
        (["list", "orders/billing", "-m", "shop"], "give names to list letters, or --module"),
        (["list", "orders/billing", "--channel", "a b"], "channel name 'a b'"),
        (["show"], "Missing argument 'ID'"),
        (["show", "0123"], "no letter has the id '0123' in orders.billing.dead"),
        (["purge", "orders/billing"], "what is purged is gone for good: add --yes, or --dry-run"),
        (["purge"], "Missing argument 'NAME...'"),
        (["replay", "orders/billing", "--to", "a b"], "topic name 'a b'"),
        (["burn"], "No such command 'burn'"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_2(arguments: list[str], words: str, nsqd: Server, dead: Dead) -> None:
    put(nsqd, letter(1))
    done = dead(*arguments) if arguments[0] != "burn" else call("dead", *arguments, cwd=nsqd.data)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    [topic] = nsqd.http("/stats?format=json")["topics"]
    assert topic["depth"] + sum(one["depth"] for one in topic["channels"]) == 1


def test_the_same_verbs_work_on_beanstalkd(beanstalkd: Server, tmp_path: Path) -> None:
    """With more letters than files that the process may have open: what is in hand costs no connection each."""
    broker = f"beanstalkd://{beanstalkd.address}"
    publisher = Publisher(broker)
    publisher.publish_many(TOPIC, [letter(n, "KeyError: 'x'" if n < 20 else "ValueError: odd") for n in range(300)])
    publisher.close()

    def dead(*arguments: str) -> str:
        limited = f"ulimit -S -n 128; exec {shlex.join(command('dead', *arguments, '--broker', broker))}"
        done = subprocess.run(limited, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert dead("list", "orders/billing", "--reason", "KeyError").endswith(f"\n20 of 300 letters in {TOPIC}\n")
    assert dead("purge", "orders/billing", "--reason", "KeyError", "--yes") == f"purged 20 of 300 letters of {TOPIC}; 280 kept\n"
    assert dead("replay", "orders/billing") == f"replayed 280 of 280 letters of {TOPIC} to orders; 0 kept, 0 failed\n"


def test_counts_that_cannot_be_had_are_not_guessed(nsqd: Server, tmp_path: Path) -> None:
    put(nsqd, letter(1))
    done = call("dead", "list", "--broker", f"nsq://{nsqd.address}?http_port={free_port()}", cwd=tmp_path)
    assert done.returncode == 3
    assert "cannot be reached" in done.stderr
