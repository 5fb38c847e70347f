"""HDFS as a spool's storage, by WebHDFS: plain HTTP to a namenode, which sends on to a datanode for what is in a file.

A put is a file with a name of its own, and then a rename that is refused where there is something (``renameoptions=NONE``): the
namenode does one at a time. No library: fsspec's rename does not say whether it was refused, and pyarrow's needs a JVM in the
process. Kerberos is not spoken.
"""

from __future__ import annotations

import errno
import getpass
import http.client
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote, urlencode, urlsplit
from uuid import uuid4

from framework.errors import WrongUse
from framework.spool.storage import Entry, StorageError

_SCHEMES = {"webhdfs": "http", "swebhdfs": "https"}
_TIMEOUT = 20.0
_DEAD_AFTER = 3600.0
"""Seconds after which a file that another process began is taken for a dead one's, by the namenode's clock."""
_LATER = {"RetriableException", "SafeModeException"}
_QUOTAS = {"DSQuotaExceededException", "NSQuotaExceededException", "QuotaByStorageTypeExceededException"}
_NO_ROOM = "could only be written to"  # an IOException like any other, but for these words (BlockManager.chooseTarget4NewBlock)

_swept: set[tuple[Hdfs, str]] = set()


@dataclass(frozen=True)
class Hdfs:
    """``hosts``: host:port of a namenode's HTTP server, several with commas between: the one that is active is asked."""

    scheme: str
    hosts: str
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, _ in self.options:
            if name != "user":
                raise WrongUse(f"spool {self.url}: a URL has no option {name!r}, there is user")
        for host in self.hosts.split(","):
            if not host.rpartition(":")[2].isdigit():
                raise WrongUse(f"spool {self.url}: {host!r} is not host:port of a namenode's HTTP server, such as namenode:9870")

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.hosts}"

    def put(self, name: str, content: Any, *, over: bool = False) -> bool:
        folder = name.rpartition("/")[0]
        fresh = f"{folder}/.{uuid4().hex}.tmp"
        self._ask("PUT", fresh, "CREATE", bytes(content), overwrite="false")
        if (self, folder) not in _swept:
            _swept.add((self, folder))
            self._sweep(folder, fresh)
        try:
            self._ask("PUT", fresh, "RENAME", destination=f"/{name}", renameoptions="OVERWRITE" if over else "NONE")
        except OSError as error:
            with suppress(OSError):  # so that a rename that arrives late finds nothing
                self.delete(fresh)
            if isinstance(error, FileExistsError):
                return False
            raise
        return True

    def list(self, folder: str, after: str = "") -> Sequence[Entry]:
        return [entry for entry in self._all(folder, after) if not entry.name.startswith(".")]

    def read(self, name: str) -> Any:
        return memoryview(self._ask("GET", name, "OPEN"))

    def delete(self, name: str) -> None:
        self._ask("DELETE", name, "DELETE")

    def exists(self, name: str) -> Entry | None:
        try:
            status = json.loads(self._ask("GET", name, "GETFILESTATUS"))["FileStatus"]
        except FileNotFoundError:
            return None
        return _entry({**status, "pathSuffix": name.rpartition("/")[2]})

    def _all(self, folder: str, after: str) -> Sequence[Entry]:
        found: dict[str, Entry] = {}
        while True:
            try:
                # By both names: a namenode of Hadoop 3.5 knows the one in small letters alone, and its page shows the other.
                answer = self._ask("GET", folder, "LISTSTATUS_BATCH", startafter=after, startAfter=after)
            except FileNotFoundError:
                return [*found.values()]
            part = json.loads(answer)["DirectoryListing"]
            statuses = part["partialListing"]["FileStatuses"]["FileStatus"]
            fresh = {one["pathSuffix"]: _entry(one) for one in statuses if one["pathSuffix"] > after}
            found |= fresh
            if not part["remainingEntries"]:
                return [*found.values()]
            if not fresh:
                raise StorageError(
                    errno.EIO, f"{self.url} lists no more of /{folder} than its beginning: it is too old for a spool"
                )
            after = max(fresh)

    def _sweep(self, folder: str, own: str) -> None:
        """Remove what processes that were killed have begun in ``folder``."""
        begun = {entry.name: entry.modified for entry in self._all(folder, "") if entry.name.startswith(".")}
        now = begun.get(own.rpartition("/")[2], 0.0)
        for name, modified in begun.items():
            if modified < now - _DEAD_AFTER:
                self.delete(f"{folder}/{name}")

    def _ask(self, method: str, name: str, verb: str, content: bytes | None = None, **options: str) -> bytes:
        user = dict(self.options).get("user") or os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        path = f"/webhdfs/v1/{quote(name)}?{urlencode({'op': verb, 'user.name': user, **options})}"
        refused = ""
        for host in self.hosts.split(","):
            try:
                status, answer, location = self._request(_SCHEMES[self.scheme], host, method, path, None)
                if status == http.client.TEMPORARY_REDIRECT:
                    there = urlsplit(location)
                    status, answer, _ = self._request(there.scheme, there.netloc, method, f"{there.path}?{there.query}", content)
            except (OSError, http.client.HTTPException):
                continue
            exception, words = _remote(answer) if status >= http.client.BAD_REQUEST else ("", "")
            if exception != "StandbyException":
                return answer if status < http.client.BAD_REQUEST else self._fail(status, exception, words, name)
            refused = exception
        why = "is in standby" if refused else "does not answer, or one of its datanodes"
        raise StorageError(errno.EIO, f"{self.url} {why}: see whether it is up, and to the URL of the spool")

    def _request(self, scheme: str, host: str, method: str, path: str, content: bytes | None) -> tuple[int, bytes, str]:
        to = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        connection = to(host, timeout=_TIMEOUT)
        try:
            connection.request(method, path, body=content, headers={"Content-Type": "application/octet-stream"})
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers.get("Location", "")
        finally:
            connection.close()

    def _fail(self, status: int, exception: str, words: str, name: str) -> NoReturn:
        if exception == "FileNotFoundException":
            raise FileNotFoundError(errno.ENOENT, f"{self.url} has no /{name}")
        if exception == "FileAlreadyExistsException":
            raise FileExistsError(errno.EEXIST, f"{self.url} has /{name}")
        if exception == "AccessControlException":
            raise StorageError(
                errno.EACCES,
                f"{self.url} denies access to /{name}: see to its permissions, and to who asks (HADOOP_USER_NAME)",
            )
        if status == http.client.UNAUTHORIZED:
            raise StorageError(errno.EACCES, f"{self.url} wants to know who asks by Kerberos, which a spool does not speak")
        if exception in _QUOTAS or _NO_ROOM in words:
            raise StorageError(errno.ENOSPC, f"{self.url} takes no more: see to the quota of /{name}, and to its datanodes' room")
        if exception in _LATER:
            raise StorageError(errno.EAGAIN, f"{self.url} is starting, or in safe mode: see whether its datanodes are up")
        raise StorageError(errno.EIO, f"{self.url} cannot do it ({status} {exception}): see to the namenode and the URL")


def _remote(answer: bytes) -> tuple[str, str]:
    """The class of a RemoteException, and what it says."""
    try:
        said = json.loads(answer)["RemoteException"]
        return str(said["exception"]), str(said.get("message", ""))
    except (ValueError, KeyError, TypeError):
        return "", ""


def _entry(status: Any) -> Entry:
    is_folder = status["type"] == "DIRECTORY"
    return Entry(status["pathSuffix"] + "/" * is_folder, status["length"], status["modificationTime"] / 1000)
