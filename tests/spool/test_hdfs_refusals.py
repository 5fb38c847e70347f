"""What a namenode may answer that a real one cannot be made to say at will: each has its error, which says what to look at."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from framework.spool.hdfs import Hdfs
from framework.spool.storage import StorageError
from framework.spool.urls import storage_of
from framework.testing.servers import free_port

Answer = tuple[int, Any]
Script = Callable[[str, str, dict[str, str]], Answer]
"""(operation, path, options) -> status and JSON."""


@pytest.fixture
def namenode() -> Iterator[Callable[[Script], str]]:
    """``namenode(script)`` -> host:port of one that answers as the script says."""
    servers: list[ThreadingHTTPServer] = []

    def start(script: Script) -> str:
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = urlsplit(self.path)
                options = {name: values[0] for name, values in parse_qs(asked.query).items()}
                status, said = script(options.pop("op"), asked.path, options)
                content = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def refusal(exception: str, words: str = "") -> Any:
    return {"RemoteException": {"exception": exception, "message": words}}


def file(name: str, at: int = 0, size: int = 1) -> dict[str, Any]:
    return {"pathSuffix": name, "type": "FILE", "length": size, "modificationTime": at}


def listing(*files: dict[str, Any], more: int = 0) -> Answer:
    return 200, {"DirectoryListing": {"partialListing": {"FileStatuses": {"FileStatus": files}}, "remainingEntries": more}}


@pytest.mark.parametrize(
    ("status", "said", "number", "words"),
    [
        (404, refusal("FileNotFoundException"), errno.ENOENT, "has no /spool/a"),
        (403, refusal("AccessControlException"), errno.EACCES, "denies access to /spool/a.*HADOOP_USER_NAME"),
        (401, "no JSON object", errno.EACCES, "by Kerberos, which a spool does not speak"),
        (403, refusal("DSQuotaExceededException"), errno.ENOSPC, "takes no more: see to the quota of /spool/a"),
        (403, refusal("NSQuotaExceededException"), errno.ENOSPC, "takes no more"),
        (403, refusal("IOException", "a could only be written to 0 of 1 nodes"), errno.ENOSPC, "datanodes' room"),
        (403, refusal("SafeModeException"), errno.EAGAIN, "is starting, or in safe mode"),
        (403, refusal("RetriableException"), errno.EAGAIN, "is starting, or in safe mode"),
        (403, refusal("IOException", "odd"), errno.EIO, r"cannot do it \(403 IOException\): see to the namenode"),
        (500, refusal("RuntimeException"), errno.EIO, r"cannot do it \(500 RuntimeException\)"),
        (400, refusal("IllegalArgumentException"), errno.EIO, r"cannot do it \(400 IllegalArgumentException\)"),
        (400, {"RemoteException": None}, errno.EIO, r"cannot do it \(400 \)"),
        (502, [], errno.EIO, r"cannot do it \(502 \)"),
    ],
)  # fmt: skip
def test_each_refusal_is_an_error_that_says_what_to_look_at(
    namenode: Callable[[Script], str], status: int, said: Any, number: int, words: str
) -> None:
    storage = Hdfs("webhdfs", namenode(lambda *_: (status, said)))
    with pytest.raises(OSError, match=words) as caught:
        storage.read("spool/a")
    assert (caught.value.errno, storage.url in str(caught.value)) == (number, True)


def test_the_one_of_several_that_is_active_is_asked(namenode: Callable[[Script], str]) -> None:
    """Of the others one is away, and one is in standby."""
    away, standby = f"127.0.0.1:{free_port()}", namenode(lambda *_: (403, refusal("StandbyException")))
    active = namenode(lambda *_: (200, {"FileStatus": file("a", 7000, 5)}))
    found = Hdfs("webhdfs", f"{away},{standby},{active}").exists("spool/a")
    assert found is not None
    assert (found.name, found.size, found.modified) == ("a", 5, 7.0)
    with pytest.raises(StorageError, match="is in standby"):
        Hdfs("webhdfs", f"{standby},{away}").exists("spool/a")
    with pytest.raises(StorageError, match="does not answer") as caught:
        Hdfs("webhdfs", away).exists("spool/a")
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize(
    ("option", "variable", "who"), [("?user=ada", "bob", "ada"), ("", "bob", "bob"), ("?user=", "bob", "bob"), ("", "", "eve")]
)
def test_who_asks_is_said_in_the_url_or_in_the_environment_or_is_who_logged_in(
    namenode: Callable[[Script], str], monkeypatch: pytest.MonkeyPatch, option: str, variable: str, who: str
) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", variable)
    monkeypatch.setattr("getpass.getuser", lambda: "eve")
    asked: list[dict[str, str]] = []
    folder = storage_of(f"webhdfs://{namenode(lambda _verb, _path, options: asked.append(options) or listing())}/spool{option}")
    assert list(folder.list()) == []
    assert [options["user.name"] for options in asked] == [who]


def test_a_list_is_asked_for_part_by_part_and_one_that_goes_no_further_is_no_list(namenode: Callable[[Script], str]) -> None:
    names = [f"{n:02d}" for n in range(10)]
    asked: list[str] = []

    def parts(operation: str, path: str, options: dict[str, str]) -> Answer:
        asked.append(options.get("startAfter", ""))
        left = [name for name in names if name > asked[-1]]
        return listing(file(".begun"), *(file(name) for name in left[:4]), more=len(left[4:]))

    assert [entry.name for entry in Hdfs("webhdfs", namenode(parts)).list("spool")] == names
    assert asked == ["", "03", "07"]
    assert [entry.name for entry in Hdfs("webhdfs", namenode(parts)).list("spool", "07")] == ["08", "09"]
    assert list(Hdfs("webhdfs", namenode(lambda *_: (404, refusal("FileNotFoundException")))).list("spool")) == []
    old = Hdfs("webhdfs", namenode(lambda *_: listing(file("01"), more=1)))
    with pytest.raises(StorageError, match="it is too old for a spool"):
        old.list("spool")


@pytest.mark.parametrize(("over", "how"), [(False, "NONE"), (True, "OVERWRITE")])
def test_a_put_leaves_nothing_of_a_rename_that_was_refused_and_sweeps_what_the_dead_began(
    namenode: Callable[[Script], str], over: bool, how: str
) -> None:
    """What is no older than an hour may be somebody's who is at it."""
    done: list[tuple[str, str]] = []
    answer: list[Answer] = [(200, {"boolean": True})]

    def script(operation: str, path: str, options: dict[str, str]) -> Answer:
        name = path.rpartition("/")[2]
        done.append((operation, options.get("renameoptions", "") or name))
        if operation == "LISTSTATUS_BATCH":
            own = done[0][1]
            young = file(".hour.tmp", 400_000), file(".young.tmp", 1_000_000)
            return listing(file(".dead.tmp"), *young, file(own, 4_000_000), file("0001"))
        return answer[0] if operation == "RENAME" else (200, {})

    storage = Hdfs("webhdfs", namenode(script))
    assert storage.put("spool/a", b"x", **({"over": True} if over else {}))
    own = done[0][1]
    assert done == [("CREATE", own), ("LISTSTATUS_BATCH", "spool"), ("DELETE", ".dead.tmp"), ("RENAME", how)]
    for answer[0], raised in (((403, refusal("FileAlreadyExistsException")), False), ((500, refusal("IOException")), True)):
        done.clear()
        if raised:
            with pytest.raises(StorageError, match="cannot do it"):
                storage.put("spool/b", b"x", over=over)
        else:
            assert storage.put("spool/b", b"x", over=over) is False
        own = done[0][1]
        assert done == [("CREATE", own), ("RENAME", how), ("DELETE", own)]
