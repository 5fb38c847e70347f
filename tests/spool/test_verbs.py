"""The five verbs of a storage, on each one that there is: a name is taken once, and what is there is there whole."""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter

import pytest

from framework.spool.root import root_of
from framework.spool.storage import Remote

pytestmark = pytest.mark.timeout(600)  # a gateway is built once


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.real)])
def folder(request: pytest.FixtureRequest) -> Remote:
    """An empty folder of a storage."""
    if request.param == "memory":
        return request.getfixturevalue("memory")  # type: ignore[no-any-return]
    folder = root_of(request.getfixturevalue("spool_url"))
    assert isinstance(folder, Remote)
    return folder


def test_a_name_is_taken_by_whoever_comes_first(folder: Remote) -> None:
    assert (folder / "a").put(b"one") is True
    assert (folder / "a").put(b"two") is False
    assert bytes((folder / "a").read()) == b"one"
    assert (folder / "a").put(b"three", over=True) is True
    assert bytes((folder / "a").read()) == b"three"


def test_of_many_that_want_a_name_one_has_it(folder: Remote) -> None:
    won: list[tuple[int, int]] = []

    def race(worker: int) -> None:
        for n in range(20):
            start.wait()
            if (folder / f"{n}").put(b"%d" % worker):
                won.append((n, worker))

    start = threading.Barrier(6)
    threads = [threading.Thread(target=race, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(n for n, _ in won) == Counter(range(20))
    assert all(bytes((folder / f"{n}").read()) == b"%d" % worker for n, worker in won)


def test_a_list_says_what_there_is_how_large_and_how_old(folder: Remote) -> None:
    began = time.time()
    for name in ("b", "a", "inner/c"):
        (folder / name).put(b"xyz")
    (folder / "empty").put(b"")
    found = {entry.name: entry for entry in folder.list()}
    assert sorted(found) == ["a", "b", "empty", "inner/"]
    assert [found[name].size for name in ("a", "b", "empty", "inner/")] == [3, 3, 0, 0]
    assert began - 2 <= found["a"].modified <= time.time() + 2
    assert [entry.name for entry in (folder / "inner").list()] == ["c"]
    assert [entry.name for entry in (folder / "none").list()] == []
    there = (folder / "a").exists()
    assert there == found["a"]


def test_a_list_may_begin_behind_a_name(folder: Remote) -> None:
    for n in range(12):
        (folder / f"{n:04d}.arrow").put(b"x" * n)
    assert [entry.size for entry in folder.list("0008")] == [8, 9, 10, 11]
    assert [entry.size for entry in folder.list("0008.arrow")] == [9, 10, 11]
    assert list(folder.list("1")) == []


def test_a_long_list_is_whole(folder: Remote) -> None:
    for n in range(1100):
        (folder / f"{n:04d}").put(b"")
    assert [entry.name for entry in folder.list()] == [f"{n:04d}" for n in range(1100)]
    assert [entry.name for entry in folder.list("0049")] == [f"{n:04d}" for n in range(50, 1100)]


def test_what_is_not_there_is_not_read_and_deleted_without_a_word(folder: Remote) -> None:
    with pytest.raises(FileNotFoundError):
        (folder / "a").read()
    assert (folder / "a").exists() is None
    (folder / "a").delete()
    (folder / "a").put(b"x")
    (folder / "a").delete()
    assert (folder / "a").exists() is None
    assert (folder / "a").put(b"y") is True


def test_large_content_comes_back_byte_for_byte(folder: Remote) -> None:
    content = bytes(range(256)) * 40_000
    assert (folder / "large").put(memoryview(content))
    assert bytes((folder / "large").read()) == content


@pytest.mark.real
def test_it_goes_to_other_processes_as_it_is(spool_url: str) -> None:
    folder = root_of(spool_url)
    assert isinstance(folder, Remote)
    (folder / "a").put(b"x")
    there = pickle.loads(pickle.dumps(folder))
    assert there == folder
    assert bytes((there / "a").read()) == b"x"
