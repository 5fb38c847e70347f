"""A broker that rejects this client is named at once, and not waited for; one that had accepted it before is tried for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from framework import Publisher, PublishError
from framework.testing.certificates import Authority
from framework.testing.servers import Server, free_port
from framework.testing.workers import call, working

pytestmark = pytest.mark.real

APP = """
from framework import handler

@handler("orders", "say")
def say(text: str) -> None:
    print(f"got {text}", flush=True)
"""
LONG = 120.0
"""Seconds of --connect-deadline: nobody waits for it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "secret").write_text("wrong")
    return tmp_path


def no_auth_server(folder: Path) -> tuple[list[str], str, str]:
    return (
        [f"--auth-http-address=127.0.0.1:{free_port()}"],
        "nsq://{}?auth_secret_file=" + str(folder / "secret"),
        "E_AUTH_FAILED",
    )


def no_secret(folder: Path) -> tuple[list[str], str, str]:
    return [f"--auth-http-address=127.0.0.1:{free_port()}"], "nsq://{}", "NSQ_AUTH_SECRET"


def tls(folder: Path) -> list[str]:
    pair = Authority(folder).sign("nsqd")
    # With a certificate nsqd listens for HTTPS as well, each at the same port unless told otherwise.
    return [f"--tls-cert={pair.cert}", f"--tls-key={pair.key}", f"--https-address=127.0.0.1:{free_port()}"]


def strange_certificate(folder: Path) -> tuple[list[str], str, str]:
    return tls(folder), "nsq+tls://{}", "a certificate that is not trusted"


def no_tls(folder: Path) -> tuple[list[str], str, str]:
    return [], "nsq+tls://{}", "grants no TLS"


def tls_only(folder: Path) -> tuple[list[str], str, str]:
    return [*tls(folder), "--tls-required=tcp-https"], "nsq://{}", "write nsq+tls://"


@pytest.fixture(params=[no_auth_server, no_secret, strange_certificate, no_tls, tls_only], ids=lambda case: case.__name__)
def refusing(request: pytest.FixtureRequest, folder: Path, start_nsqd: Callable[..., Server]) -> tuple[Server, str, str]:
    """An nsqd that refuses us, the URL to come by, and what must be said."""
    flags, url, words = request.param(folder)
    nsqd = start_nsqd(*flags)
    return nsqd, url.format(nsqd.address), words


def ends_at_once(verb: list[str], url: str, folder: Path) -> CompletedProcess[str]:
    began = time.monotonic()
    done = call(*verb, "--broker", url, f"--connect-deadline={LONG:g}s", cwd=folder, stdin=b"x\n")
    assert done.returncode == 3, done
    assert time.monotonic() - began < LONG / 2
    return done


def test_a_worker_ends_at_once_with_one_sentence_and_exit_3(refusing: tuple[Server, str, str], folder: Path) -> None:
    nsqd, url, words = refusing
    last = ends_at_once(["run", "shop"], url, folder).stderr.splitlines()[-1]
    assert last.startswith("workers: handler orders/say: no broker accepts it (")
    assert nsqd.address in last
    assert words in last


def test_so_do_the_other_verbs(folder: Path, nsqd: Server) -> None:
    assert "grants no TLS" in ends_at_once(["check", "shop"], f"nsq+tls://{nsqd.address}", folder).stdout
    assert "grants no TLS" in ends_at_once(["publish", "orders"], f"nsq+tls://{nsqd.address}", folder).stderr


def test_a_publish_fails_at_once_and_nothing_is_stored(refusing: tuple[Server, str, str]) -> None:
    nsqd, url, words = refusing
    began = time.monotonic()
    with pytest.raises(PublishError, match=words.replace("+", r"\+")) as caught:
        Publisher(url).publish("orders", b"x")
    assert caught.value.stored is False
    [error] = Publisher(url).publish_each("orders", [b"x"])
    assert error is not None
    assert error.stored is False
    assert nsqd.address in str(caught.value)
    assert time.monotonic() - began < 20  # of 30 that a node which is away is given


def test_a_broker_that_had_let_us_in_is_tried_until_it_does_again(folder: Path, start_nsqd: Callable[..., Server]) -> None:
    nsqd = start_nsqd()
    url, command = f"nsq://{nsqd.address}", nsqd.command
    with working("run", "shop", "--broker", url, cwd=folder) as worker:
        publisher = Publisher(url)
        publisher.publish("orders", b"1")
        worker.wait_for("got 1")
        nsqd.kill()
        nsqd.command = [*command, f"--auth-http-address=127.0.0.1:{free_port()}"]
        nsqd.start()
        worker.wait_for("E_AUTH_FIRST")
        nsqd.kill()
        nsqd.command = command
        nsqd.start()
        publisher.publish("orders", b"2")
        worker.wait_for("got 2", deadline=60)
        assert worker.stop() == 0
