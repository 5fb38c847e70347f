"""Spools in Azurite, which is Microsoft's own server of Azure's blobs for tests: each message once, and errors in a sentence.

Azurite keeps nothing over its kill -9, so what is killed are the collectors.
"""

from __future__ import annotations

import base64
import os
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from framework.spool import Spool, SpoolError, objects
from framework.spool.root import root_of
from framework.testing import servers
from framework.testing.servers import Server
from framework.testing.storages import ACCOUNT_KEY, Azurite, azure_environment, real_azure
from tests.conftest import missing
from tests.spool.rows import MakeBatch, ids
from tests.spool.test_kill import wait_until_empty
from tests.spool.test_s3 import collector, landed, published

__all__ = ["collector"]

pytestmark = [pytest.mark.real, pytest.mark.at_length, pytest.mark.timeout(600)]  # it is installed once
_numbers = count()


@pytest.fixture(scope="module")
def _azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    try:
        server = real_azure(tmp_path_factory.mktemp("azure"))
    except servers.ServerMissing as error:
        missing(str(error))
        raise
    with servers.running(server):
        server.container("spools")
        yield server


@pytest.fixture
def azurite(_azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> Azurite:
    """One for all tests, with a container ``spools``; the environment has its credentials."""
    for name, value in azure_environment().items():
        monkeypatch.setenv(name, value)
    objects._opened.cache_clear()
    return _azurite


@pytest.fixture
def spool_url(azurite: Azurite) -> str:
    """The URL of a spool that is not there yet."""
    return azurite.url("spools", f"test-{os.getpid()}-{next(_numbers)}/spool")


def test_what_is_landed_is_read_and_what_comes_again_is_not_landed_again(spool_url: str, batch: MakeBatch) -> None:
    with Spool(spool_url) as spool:
        assert [spool.land(batch(0, 10)), spool.land(batch(5, 15))] == [10, 5]
    assert Counter(ids(Spool(spool_url))) == Counter(f"{n:016x}" for n in range(15))


def test_of_those_who_put_one_name_at_once_one_has_it(spool_url: str) -> None:
    folder = root_of(spool_url)
    won: list[int] = []

    def put(writer: int, name: str) -> None:
        if folder.storage.put(f"{folder.key}/{name}", b"%d" % writer):
            won.append(writer)

    for number in range(20):
        won.clear()
        writers = [threading.Thread(target=put, args=(writer, str(number))) for writer in range(8)]
        for one in writers:
            one.start()
        for one in writers:
            one.join()
        assert [b"%d" % each for each in won] == [bytes(folder.storage.read(f"{folder.key}/{number}"))]


@pytest.mark.parametrize("point", ["written", "named", "durable"])
def test_a_killed_collector_loses_nothing_and_doubles_nothing(
    start_nsqd: Callable[..., Server], collector: Callable[..., Any], spool_url: str, point: str
) -> None:
    nsqd = start_nsqd("--msg-timeout=2s")
    sent = published(nsqd, 10_000)
    assert collector(nsqd, point).wait(60) == -signal.SIGKILL
    second = collector(nsqd, "never")
    wait_until_empty(nsqd, second)
    second.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0
    assert landed(spool_url) == sent
    assert nsqd.channel_stats("orders", "archive")["timeout_count"] > 0, "the batch did come again"


def test_of_several_collectors_some_are_killed_and_each_message_is_there_once(
    start_nsqd: Callable[..., Server], collector: Callable[..., Any], spool_url: str
) -> None:
    nsqd = start_nsqd("--msg-timeout=2s")
    sent = published(nsqd, 20_000)
    dying = [collector(nsqd, point, 1000) for point in ("written", "named", "durable")]
    assert [one.wait(60) for one in dying] == [-signal.SIGKILL] * 3
    wait_until_empty(nsqd, collector(nsqd, "never"))
    assert landed(spool_url) == sent


def test_a_container_that_does_not_exist_is_named(azurite: Azurite, batch: MakeBatch) -> None:
    with pytest.raises(SpoolError, match="there is no bucket az://no-such-container: make it, or mend the URL"):
        Spool(azurite.url("no-such-container", "spool")).land(batch(0, 1))


def test_who_may_not_do_it_is_told_what_to_see_to_and_no_secret(
    spool_url: str, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = base64.b64encode(b"another key, which nobody was given").decode()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", wrong)
    try:
        Spool(spool_url).land(batch(0, 1))
    except SpoolError as error:
        words = "".join(traceback.format_exception(error))
    objects._opened.cache_clear()
    assert "az://spools denies access (403 AuthorizationFailure): see to AZURE_STORAGE_ACCOUNT_NAME" in words
    for secret in (wrong, ACCOUNT_KEY, "Signature", "SharedKey"):
        assert secret not in words


def test_a_server_that_is_down_fails_the_batch_which_comes_again(azurite: Azurite, spool_url: str, batch: MakeBatch) -> None:
    spool = Spool(spool_url)
    assert spool.land(batch(0, 3)) == 3
    azurite.freeze()
    try:
        with pytest.raises(SpoolError, match="az://spools does not answer: see whether it is up"):
            spool.land(batch(3, 6))
    finally:
        azurite.thaw()
    assert spool.land(batch(0, 6)) == 3
    assert len(ids(spool)) == 6
