"""The process: flags as Go reads them, lines that tools wait for, one process a folder, clean ends, the embedded one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import BrokerUnreachable
from framework.nsqd import daemon, golang, options
from framework.nsqd.embedded import EmbeddedNsqd, ensure, find
from framework.testing.servers import Server, free_port
from tests.nsqd.conftest import logged


def run(*flags: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "framework.nsqd", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=cwd, check=False)


def test_version_is_printed_as_nsqd_prints_it() -> None:
    done = run("--version")
    assert re.fullmatch(r"nsqd v1\.3\.0 \(built w/.+\)\n", done.stdout)
    assert done.returncode == 0


def test_an_unknown_flag_is_refused_as_go_refuses_it() -> None:
    done = run("--tcp-adress=x")
    assert done.returncode == 2
    assert done.stderr == "nsqd: flag provided but not defined: -tcp-adress (--help lists the flags)\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--msg-timeout=60"], 'invalid value "60" for flag -msg-timeout'),
        (["--max-rdy-count=many"], 'invalid value "many" for flag -max-rdy-count'),
        (["--msg-timeout=-1s"], "at least 0.001s"),
        (["--max-msg-size=0"], "at least 1"),
        (["--mem-queue-size=-1"], "at least 0"),
        (["--sync-every=0"], "at least 1"),
        (["--data-path"], "flag needs an argument: -data-path"),
        (["--node-id=1024"], "out of range"),
        (["--log-level=loud"], "debug, info, warn, error, fatal"),
        (["--max-deflate-level=10"], "out of range: use 1 to 9"),
        (["--tls-required=perhaps"], 'invalid value "perhaps" for flag -tls-required'),
        (["--tls-min-version=tls1.4"], "not one of tls1.0, tls1.1, tls1.2, tls1.3"),
        (["--lookupd-tcp-address=lookup1"], "not <host>:<port>"),
    ],
)
def test_a_wrong_value_is_refused_by_name(flags: list[str], words: str) -> None:
    with pytest.raises(options.BadFlag, match=re.escape(words)):
        options.parse(flags)


@pytest.mark.parametrize(
    ("flags", "on"), [([], False), (["--snappy=false"], False), (["--snappy"], None), (["--snappy=true"], None)]
)
def test_without_its_library_snappy_is_off_and_to_ask_for_it_says_what_to_install(
    flags: list[str], on: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    if on is None:
        with pytest.raises(options.BadFlag, match="pip install python-snappy"):
            options.parse(flags)
    else:
        assert options.parse(flags).snappy is on


EDGES = {
    "node-id": (0, 1023),
    "max-deflate-level": (1, 9),
    "sync-every": (1, None),
    "max-msg-size": (1, None),
    "mem-queue-size": (0, None),
}


@pytest.mark.parametrize("flag", EDGES)
def test_the_least_and_the_most_of_a_flag_are_taken_and_nothing_beyond(flag: str) -> None:
    least, most = EDGES[flag]
    for value in (least, least if most is None else most):
        assert getattr(options.parse([f"--{flag}={value}"]), flag.replace("-", "_")) == value
    for value in (least - 1, *([] if most is None else [most + 1])):
        with pytest.raises(options.BadFlag, match=flag):
            options.parse([f"--{flag}={value}"])


@pytest.mark.parametrize("port", [1, 65535])
def test_any_port_is_one_of_an_nsqlookupd(port: int) -> None:
    assert options.parse([f"--lookupd-tcp-address=lookup:{port}"]).lookupd_tcp_addresses == [f"lookup:{port}"]
    with suppress(OSError):  # it may be another's, or not for everybody
        daemon.bind(f"127.0.0.1:{port}").close()


@pytest.mark.parametrize("port", ["0", "65536", "x", "", "-1", "\u0661"])
def test_what_is_no_port_is_refused(port: str) -> None:
    with pytest.raises(options.BadFlag, match="not <host>:<port>"):
        options.parse([f"--lookupd-tcp-address=lookup:{port}"])
    if port != "0":  # any that is free
        with pytest.raises(options.BadFlag, match="not <host>:<port>"):
            daemon.bind(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (b"a b", '"a b"'), (b"\x80", r'"\x80"'), (b"\xff", r'"\xff"'), (b"\x7f", r'"\x7f"'), (b"\x00", r'"\x00"'),
        (b"\t", r'"\t"'),
        (b'"', r'"\""'), (b"\\", r'"\\"'), ("\u00e9".encode(), '"\u00e9"'), ("\u2028".encode(), r'"\u2028"'),
        ("\U000e0001".encode(), r'"\U000e0001"'),
    ],
)  # fmt: skip
def test_what_was_sent_is_quoted_as_go_quotes_it(raw: bytes, quoted: str) -> None:
    assert golang.quote(raw) == quoted


def test_flags_are_read_in_all_of_gos_forms() -> None:
    got = options.parse(
        ["-msg-timeout", "2s", "--max-rdy-count=7", "-max-msg-size=9", "--verbose", "-snappy=false", "--node-id", "3"]
    )
    assert (got.msg_timeout, got.max_rdy_count, got.max_msg_size, got.node_id) == (2.0, 7, 9, 3)
    assert got.warnings == []


def test_what_is_not_here_is_accepted_and_named() -> None:
    got = options.parse(["--max-bytes-per-file=1", "--statsd-address", "d", "--queue-scan-selection-count=3"])
    assert [warning.split()[0] for warning in got.warnings] == [
        "-max-bytes-per-file", "-statsd-address", "-queue-scan-selection-count"
    ]  # fmt: skip


def test_what_is_loosened_is_said_at_start() -> None:
    assert options.parse([]).warnings == []
    (said,) = options.parse(["--sync-every=100"]).warnings
    assert said.startswith("-sync-every=100 -sync-timeout=2s: a power cut may lose that much")
    assert options.parse(["--sync-timeout=500ms"]).sync_every == 2500


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("1h30m", 5400), ("1.5s", 1.5), ("250ms", 0.25), ("10us", 1e-5), ("-2s", -2), ("0", 0), (".5m", 30)],
)
def test_durations_are_gos(text: str, seconds: float) -> None:
    assert golang.duration(text) == pytest.approx(seconds)


@given(st.text(max_size=12))
def test_no_text_breaks_the_duration_parser(text: str) -> None:
    try:
        golang.duration(text)
    except ValueError:
        pass


def test_it_says_where_it_listens_and_what_a_sync_costs(start_embedded: Callable[..., Server]) -> None:
    server = start_embedded()
    assert logged(server, "HTTP: listening")
    stamp = r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: "
    log = "\n".join(server.log)
    assert re.search(stamp + rf"TCP: listening on 127\.0\.0\.1:{server.tcp_port}$", log, re.M)
    assert re.search(stamp + rf"HTTP: listening on 127\.0\.0\.1:{server.http_port}$", log, re.M)
    assert re.search(stamp + r"DISK: a sync of .+ takes \d+\.\d\d ms$", log, re.M)


def test_it_serves_where_its_log_cannot_be_written(ours: Server) -> None:
    """Harnesses are known to give it a file that is open for reading only."""
    ours.stop()
    ours.command = ["bash", "-c", 'exec "$@" 2< /dev/null', "-", *ours.command]
    ours.start()
    assert ours.http("/pub?topic=quiet", b"x") == "OK"
    assert ours.stop() == 0


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(ours: Server, talk: Callable[..., Any], sent: signal.Signals) -> None:
    client = talk(ours)
    client.send(b"SUB end c\n")
    client.reply(1)
    assert ours.process is not None
    ours.process.send_signal(sent)
    assert ours.process.wait(10) == 0
    assert client.until(lambda: client.closed)
    assert logged(ours, "NSQ: bye")


def test_a_folder_in_use_is_one_sentence_and_exit_1(start_embedded: Callable[..., Server]) -> None:
    server = start_embedded()
    done = run(f"--data-path={server.data}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    assert done.returncode == 1
    assert re.fullmatch(r"nsqd: the data folder .+ is in use by another nsqd: .+--data-path\n", done.stderr)


def test_a_port_in_use_is_one_sentence_and_exit_1(start_embedded: Callable[..., Server], tmp_path: Path) -> None:
    server = start_embedded()
    done = run(f"--data-path={tmp_path / 'other'}", f"--tcp-address=127.0.0.1:{server.tcp_port}", "--http-address=127.0.0.1:0")
    assert done.returncode == 1
    assert done.stderr == (f"nsqd: cannot listen on 127.0.0.1:{server.tcp_port}: Address already in use; name another address\n")


def test_a_folder_that_cannot_be_made_is_one_sentence_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(f"--data-path={tmp_path / 'file' / 'below'}")
    assert done.returncode == 1
    assert done.stderr.startswith("nsqd: the data folder ")
    assert done.stderr.count("\n") == 1


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def used(start_embedded: Callable[..., Server]) -> Path:
    """The data folder of an nsqd that has ended, with a message in it."""
    server = start_embedded()
    server.http("/pub?topic=kept", b"body")
    assert server.stop() == 0
    return server.data


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ('{"format": 3, "of": "another shape"}', "says format 3, this version reads up to 2: run the version that wrote it"),
        (
            '{"format": 3, "salt": 1}',
            "says format 3, this version reads up to 2: run the version that wrote it, or name another --data-path",
        ),
        ('{"salt": 1}', "is damaged"),
        ("{", "is damaged"),
        (None, "is missing beside a log"),
    ],
)
def test_a_folder_of_another_version_is_one_sentence_exit_1_and_as_it_was(used: Path, meta: str | None, words: str) -> None:
    (used / "meta.json").unlink()
    if meta is not None:
        (used / "meta.json").write_text(meta)
    before = snapshot(used)
    done = run(f"--data-path={used}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert words in done.stderr
    assert snapshot(used) == before


def test_a_folder_of_another_owner_is_one_sentence_exit_1_and_as_it_was(used: Path) -> None:
    before = snapshot(used)
    for path in (used, *used.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = run_as_another(f"--data-path={used}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")
    for path in (used, *used.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert re.fullmatch(r"nsqd: the data folder .+ cannot be used: .+/lock: Permission denied; .+ --data-path\n", done.stderr)
    assert snapshot(used) == before


def run_as_another(*flags: str) -> subprocess.CompletedProcess[str]:
    """As ``run``, without the right to read and write everything that root has."""
    if os.geteuid() != 0:
        return run(*flags)
    drop = "import ctypes, runpy, sys; ctypes.CDLL(None).prctl(24, 1); ctypes.CDLL(None).prctl(24, 2); "
    drop += "sys.argv[0] = 'nsqd'; from framework.nsqd.server import main; "
    drop += "ctypes.CDLL(None).capset((ctypes.c_uint * 2)(0x20080522, 0), (ctypes.c_uint * 6)()); sys.exit(main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", drop, *flags], capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("which", ["cert", "key"])
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_unreadable_certificate_is_one_sentence_exit_1_and_makes_no_folder(
    tmp_path: Path, which: str, content: str | None
) -> None:
    for name in ("cert", "key"):
        (tmp_path / f"{name}.pem").write_text("no certificate")
    if content is None:
        (tmp_path / f"{which}.pem").unlink()
    done = run(
        f"--data-path={tmp_path / 'data'}", f"--tls-cert={tmp_path / 'cert.pem'}", f"--tls-key={tmp_path / 'key.pem'}",
        "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0",
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith(f"nsqd: cannot use -tls-cert {tmp_path / 'cert.pem'} with -tls-key {tmp_path / 'key.pem'}: ")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("which", ["tcp", "http"])
def test_a_port_in_use_leaves_the_folder_as_it_was(used: Path, shared: Server, which: str) -> None:
    before = snapshot(used)
    port = shared.tcp_port if which == "tcp" else shared.http_port
    addresses = {"tcp": "127.0.0.1:0", "http": "127.0.0.1:0", which: f"127.0.0.1:{port}"}
    done = run(f"--data-path={used}", *(f"--{name}-address={address}" for name, address in addresses.items()))
    assert done.returncode == 1
    assert done.stderr == f"nsqd: cannot listen on 127.0.0.1:{port}: Address already in use; name another address\n"
    assert snapshot(used) == before


def test_nothing_but_the_loopback_is_listened_on_by_default() -> None:
    assert (options.Options().tcp_address, options.Options().http_address) == ("127.0.0.1:4150", "127.0.0.1:4151")


@pytest.fixture
def addresses() -> dict[str, str]:
    return {"tcp_address": f"127.0.0.1:{free_port()}", "http_address": f"127.0.0.1:{free_port()}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a" / "folder"


def test_the_embedded_one_is_started_once_and_found_again(folder: Path, addresses: dict[str, str]) -> None:
    assert find(folder) is None
    started = ensure(folder, **addresses)
    try:
        http_port = addresses["http_address"].rpartition(":")[2]
        assert started.url == find(folder) == f"nsq://{addresses['tcp_address']}?http_port={http_port}"
        found = ensure(folder, tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
        assert (found.url, found.process) == (started.url, None)
        found.stop()
        assert find(folder) == started.url
    finally:
        started.stop()
    assert find(folder) is None


def test_two_that_start_at_once_share_one(folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(ensure, folder, tcp_address="127.0.0.1:0", http_address="127.0.0.1:0") for _ in range(2)]
        both: list[EmbeddedNsqd] = [call.result() for call in calls]
    try:
        assert both[0].url == both[1].url
        assert [one.process is None for one in both].count(True) == 1
    finally:
        for one in both:
            one.stop()


def test_what_a_killed_one_left_behind_does_not_mislead(folder: Path, addresses: dict[str, str]) -> None:
    started = ensure(folder, **addresses)
    assert started.process is not None
    os.kill(started.process.pid, signal.SIGKILL)
    started.process.wait()
    started.stop()
    assert find(folder) is None
    again = ensure(folder, **addresses)
    assert find(folder) == again.url
    again.stop()


def test_a_port_in_use_is_said_to_whoever_wanted_it(folder: Path, shared: Server) -> None:
    with pytest.raises(BrokerUnreachable, match=f"cannot listen on 127.0.0.1:{shared.tcp_port}"):
        ensure(folder, tcp_address=f"127.0.0.1:{shared.tcp_port}", http_address="127.0.0.1:0")


def test_workers_nsqd_takes_nsqds_flags() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "framework.cli", "nsqd", "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout.startswith("nsqd v1.3.0 (built w/")
