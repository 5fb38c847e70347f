"""Spools in a real S3 gateway: kills of collectors and of the gateway, counted, and what a bucket may refuse, in a sentence."""

from __future__ import annotations

import http.server
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.errors import WrongUse
from framework.spool import Spool, SpoolError, numbered, objects, segment
from framework.spool.root import epoch, root_of
from framework.testing.servers import ROOT, Server
from framework.testing.storages import SECRET, Gateway
from tests.spool.rows import MakeBatch, ids
from tests.spool.test_kill import SCRIPT, wait_until_empty

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]  # a gateway is built once


def landed(url: str) -> Counter[bytes]:
    """Body -> how often, in whole segments whose numbers have no gap."""
    numbered._floors.clear()
    found = segment.listing(root_of(url) / "worker")
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    bodies: Counter[bytes] = Counter()
    for one in found:
        values = segment.read(one.path)["value"].to_pylist()
        assert len(values) == one.rows
        bodies.update(values)
    return bodies


@pytest.fixture
def collector(spool_url: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts collectors of orders/archive: ``collector(nsqd, "named", 3000)``. The spool is at ``spool_url``."""
    started: list[subprocess.Popen[bytes]] = []

    def start(nsqd: Server, point: str, rows: int = 3000) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(SCRIPT), spool_url, f"nsq://{nsqd.address}", point, "shared", str(rows)]
        started.append(subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def published(nsqd: Server, count: int) -> Counter[bytes]:
    sent = Counter(b"m%d" % n for n in range(count))
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http("/channel/create?topic=orders&channel=archive", b"")
    nsqd.http("/mpub?topic=orders", b"\n".join(sent))
    return sent


@pytest.mark.parametrize("point", ["written", "named", "durable"])
def test_a_killed_collector_loses_nothing_and_doubles_nothing(
    start_nsqd: Callable[..., Server], collector: Callable[..., Any], spool_url: str, point: str
) -> None:
    nsqd = start_nsqd("--msg-timeout=2s")
    sent = published(nsqd, 10_000)
    assert collector(nsqd, point).wait(40) == -signal.SIGKILL
    assert sum(landed(spool_url).values()) >= (3000 if point == "written" else 3001)
    second = collector(nsqd, "never")
    wait_until_empty(nsqd, second)
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0
    assert landed(spool_url) == sent
    assert nsqd.channel_stats("orders", "archive")["timeout_count"] > 0, "the batch did come again"


@pytest.mark.long_run
@pytest.mark.slow
def test_several_collectors_and_the_gateway_are_killed_and_one_is_paused_past_its_leases(
    start_nsqd: Callable[..., Server], collector: Callable[..., Any], s3: Gateway, spool_url: str
) -> None:
    nsqd = start_nsqd("--msg-timeout=2s")
    sent = published(nsqd, 20_000)
    dying = [collector(nsqd, point, 1000) for point in ("written", "named", "durable")]
    assert [one.wait(40) for one in dying] == [-signal.SIGKILL] * 3
    staying, paused = collector(nsqd, "never"), collector(nsqd, "never")
    for down in (0.2, 1.0):
        wait_until_more(spool_url)
        s3.kill()
        time.sleep(down)
        s3.start()
    if nsqd.channel_stats("orders", "archive")["depth"]:
        paused.send_signal(signal.SIGSTOP)
        time.sleep(4.5)  # for longer than its leases
        paused.send_signal(signal.SIGCONT)
    wait_until_empty(nsqd, staying)
    assert landed(spool_url) == sent


def wait_until_more(url: str) -> None:
    folder = root_of(url) / "worker"
    before = sum(one.rows for one in segment.listing(folder))
    until = time.monotonic() + 40
    while sum(one.rows for one in segment.listing(folder)) == before < 20_000:
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.at_length
def test_twenty_kills_of_collectors_and_of_the_gateway_lose_and_double_nothing(
    start_nsqd: Callable[..., Server], collector: Callable[..., Any], s3: Gateway, spool_url: str
) -> None:
    nsqd = start_nsqd("--msg-timeout=2s")
    sent = published(nsqd, 100_000)
    points = ["written", "named", "durable"]
    running = [collector(nsqd, points[n % 3], 1000 * (n + 1)) for n in range(4)]
    killed = 0
    for n in range(20):
        time.sleep(0.5)
        if n % 5 == 4:
            s3.kill()
            time.sleep(0.5)
            s3.start()
        running[n % 4].kill()
        killed += running[n % 4].wait() == -signal.SIGKILL
        running[n % 4] = collector(nsqd, points[n % 3], 2000)
    last = collector(nsqd, "never")
    wait_until_empty(nsqd, last)
    assert killed == 20
    assert landed(spool_url) == sent


def _land(url: str, batches: list[Any]) -> None:
    spool = Spool(url)
    for one in batches:
        while True:
            try:
                spool.land(one)
                break
            except SpoolError:  # the gateway is down
                time.sleep(0.05)


def test_a_gateway_that_is_killed_and_comes_back_has_each_message_once(s3: Gateway, spool_url: str, batch: MakeBatch) -> None:
    batches = [batch(n, n + 60) for n in range(0, 6000, 50)]
    writers = [threading.Thread(target=_land, args=(spool_url, batches[first:] + batches[:first])) for first in (0, 30, 60)]
    for writer in writers:
        writer.start()
    for _ in range(3):
        time.sleep(0.15)
        s3.kill()
        time.sleep(0.1)
        s3.start()
    for writer in writers:
        writer.join(200)
        assert not writer.is_alive(), "not all was landed yet"
    spool = Spool(spool_url)
    found = segment.listing(spool.folder)
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    assert Counter(ids(spool)) == Counter(f"{n:016x}" for n in range(6010))


def test_a_gateway_that_is_down_fails_the_batch_which_comes_again(s3: Gateway, spool_url: str, batch: MakeBatch) -> None:
    spool = Spool(spool_url)
    assert spool.land(batch(0, 3)) == 3
    s3.kill()
    with pytest.raises(
        SpoolError, match=r"3 messages could not be written: s3://spools does not answer: see whether it is up, and"
    ):
        spool.land(batch(3, 6))
    with pytest.raises(SpoolError, match=r"cannot be opened: s3://spools does not answer"):
        Spool(spool_url).open()
    s3.start()
    assert spool.land(batch(0, 6)) == 3


def test_a_bucket_that_does_not_exist_is_named(s3: Gateway, batch: MakeBatch) -> None:
    url = s3.url("no-such-bucket", "spool")
    with pytest.raises(SpoolError, match="cannot be opened: there is no bucket s3://no-such-bucket: make it, or mend the URL"):
        Spool(url).land(batch(0, 1))
    with pytest.raises(OSError, match="there is no bucket s3://no-such-bucket"):
        segment.listing(root_of(url) / "main")
    with pytest.raises(OSError, match="there is no bucket s3://no-such-bucket"):
        epoch(root_of(url))


def test_who_may_not_do_it_is_told_what_to_see_to_and_no_secret(
    s3: Gateway, spool_url: str, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects._opened.cache_clear()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-value")
    with pytest.raises(SpoolError, match=r"s3://spools denies access \(403 SignatureDoesNotMatch\): see to AWS_ACCESS_KEY_ID"):
        Spool(spool_url).land(batch(0, 1))
    objects._opened.cache_clear()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    try:
        Spool(spool_url).land(batch(0, 1))
    except SpoolError as error:
        words = "".join(traceback.format_exception(error))
    objects._opened.cache_clear()
    assert "denies access (404 XAdminUserNotFound)" in words
    for secret in ("nobody", "not-the-secret-value", SECRET, "Signature=", "StringToSign"):
        assert secret not in words


def test_a_full_bucket_lands_nothing_and_goes_on_once_there_is_room(s3: Gateway, spool_url: str, batch: MakeBatch) -> None:
    """A file system of one megabyte under the bucket, where one can be mounted."""
    folder = s3.data / "full-bucket"
    folder.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        spool = Spool(s3.url("full-bucket", "spool"))
        assert spool.land(batch(0, 10)) == 10
        with pytest.raises(
            SpoolError,
            match=r"s3://full-bucket takes no more \(507 InsufficientStorage\): make room",
        ):
            spool.land(batch(10, 15, body=bytes(300_000)))
        assert spool.land(batch(5, 15)) == 5
        assert len(ids(spool)) == 15
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://key:hush@bucket/spool", "the URL of spool s3://bucket/spool holds credentials: set them in the environment"),
        ("s3:///spool", "a bucket and a folder in it are needed, as in s3://bucket/spool"),
        ("s3://bucket/../spool", "a bucket and a folder in it are needed"),
        ("s3://bucket/spool?secret_access_key=hush", "a URL has no option 'secret_access_key', there are endpoint and region"),
        ("gs://bucket/spool?endpoint=x", "a URL has no option 'endpoint', there is none"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_at_once_without_its_secrets(url: str, words: str) -> None:
    with pytest.raises(WrongUse, match=words) as refused:
        Spool(url)
    assert "hush" not in str(refused.value)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "obstore" else find(name))
    with pytest.raises(WrongUse, match=r"object stores need obstore: pip install nsq-workers\[object-store\]"):
        Spool("s3://bucket/spool")


def test_nothing_of_it_is_imported_for_a_folder(tmp_path: Path) -> None:
    words = f"import sys; from framework.spool import Spool; Spool({str(tmp_path)!r}).open(); print('obstore' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert said == "False\n"


@pytest.mark.parametrize("endpoint", ["minio:9000", "http://", "ftp://minio", "http:///x", "http://minio 9000"])
def test_an_endpoint_that_is_no_address_is_refused_and_not_left_to_a_panic(
    monkeypatch: pytest.MonkeyPatch, batch: MakeBatch, endpoint: str
) -> None:
    """Which no `except Exception` of a collector sees: its query went on, and read nothing any more."""
    with pytest.raises(WrongUse, match="its option endpoint is no address of a server: say one such as http://minio:9000"):
        Spool(f"s3://spools/a?endpoint={endpoint}")
    objects._opened.cache_clear()
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(SpoolError, match="s3://spools: AWS_ENDPOINT_URL is no address of a server"):
        Spool("s3://spools/a").land(batch(0, 1))


@pytest.fixture
def page() -> Iterator[str]:
    """A web server that answers everything with a page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "13")
            self.end_headers()
            self.wfile.write(b"<html></html>")

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def test_a_web_page_is_no_spool(s3: Gateway, page: str) -> None:
    """A query read none of it, and said nothing."""
    with pytest.raises(SpoolError, match=r"its file epoch is damaged: .* and see that it is the storage's server that answers"):
        epoch(root_of(f"s3://spools/a?endpoint={page}&region=us-east-1"))


def test_a_server_that_knows_no_objects_is_no_folder_to_be_made(s3: Gateway, nsqd: Server, batch: MakeBatch) -> None:
    with pytest.raises(SpoolError, match=r"s3://spools takes no object \(404\): see where it is looked for"):
        Spool(f"s3://spools/a?endpoint=http://{nsqd.http_address}&region=us-east-1").land(batch(0, 1))
