"""What tests of several rooms share: spools in real storages, and one in memory whose verbs can be made to fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from framework.spool.storage import Entry, Remote, StorageError
from framework.testing import servers, storages
from tests.conftest import missing

_numbers = count()


@pytest.fixture(scope="session")
def _gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[storages.Gateway]:
    try:
        gateway = storages.real_s3(tmp_path_factory.mktemp("s3"))
    except servers.ServerMissing as error:
        missing(str(error))
        raise
    gateway.bucket("spools")
    with servers.running(gateway):
        yield gateway


@pytest.fixture
def s3(_gateway: storages.Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[storages.Gateway]:
    """One real S3 gateway for all tests that share it, with a bucket ``spools``; the environment has its credentials. A test may
    kill it."""
    for name, value in storages.environment().items():
        monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if name.startswith("AWS_ENDPOINT")]:
        monkeypatch.delenv(name)
    yield _gateway
    if _gateway.process is None:
        _gateway.start()


@pytest.fixture
def spool_url(s3: storages.Gateway) -> str:
    """The URL of a spool that is not there yet."""
    return s3.url("spools", f"test-{os.getpid()}-{next(_numbers)}/spool")


class Killed(BaseException):
    """The process is killed, or so it seems to what runs in this one."""


class Memory:
    """A storage in this process. ``fault`` is asked before and after each verb that writes, with its name and ``key``."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.verbs: list[tuple[str, str]] = []
        """All that were asked for."""
        self.fault: Callable[[str, str, str], None] = lambda when, verb, name: None
        self.now: float = time.time()

    @property
    def url(self) -> str:
        return "memory://tests"

    def put(self, name: str, content: Any, *, over: bool = False) -> bool:
        self._ask("before", "put", name)
        if name in self.objects and not over:
            return False
        self.objects[name] = bytes(content), self.now
        self.fault("after", "put", name)
        return True

    def list(self, folder: str, after: str = "") -> Sequence[Entry]:
        self.verbs.append(("list", folder))
        prefix = f"{folder}/" if folder else ""
        found: dict[str, Entry] = {}
        for name, (content, modified) in list(self.objects.items()):
            inner = name.removeprefix(prefix)
            if name.startswith(prefix) and inner > after:
                own, slash, _ = inner.partition("/")
                found[own + slash] = Entry(own + slash, 0 if slash else len(content), 0.0 if slash else modified)
        return sorted(found.values())

    def read(self, name: str) -> Any:
        self.verbs.append(("read", name))
        if name not in self.objects:
            raise FileNotFoundError(name)
        return memoryview(self.objects[name][0])

    def delete(self, name: str) -> None:
        self._ask("before", "delete", name)
        self.objects.pop(name, None)
        self.fault("after", "delete", name)

    def exists(self, name: str) -> Entry | None:
        self.verbs.append(("exists", name))
        found = self.objects.get(name)
        return None if found is None else Entry(name.rpartition("/")[2], len(found[0]), found[1])

    def _ask(self, when: str, verb: str, name: str) -> None:
        self.verbs.append((verb, name))
        self.fault(when, verb, name)


def fails_at(nth: int, when: str, raised: type[BaseException]) -> Callable[[str, str, str], None]:
    """A fault ``before`` or ``after`` the ``nth`` verb that writes, once."""
    seen = [0]

    def fault(now: str, verb: str, name: str) -> None:
        seen[0] += now == when
        if now == when and seen[0] == nth:
            raise StorageError(5, f"{verb} {name}: no answer") if raised is StorageError else raised

    return fault


@pytest.fixture
def memory() -> Remote:
    """The folder of a spool in memory."""
    return Remote(Memory(), "spool")
