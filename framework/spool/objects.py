"""Object stores as a spool's storage, by the library obstore: S3 and what is compatible with it, Google's and Azure's.

A put is exclusive by If-None-Match (``mode="create"``), and one request: no object is seen in part. Where a bucket is and who
asks, obstore takes from the environment, as each cloud's own tools do. No error tells what a server said beyond its status and
its code: some say what was signed, and with which key.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from ipaddress import ip_address
from typing import Any, TypeVar

from framework.errors import WrongUse
from framework.spool.storage import Entry, StorageError

_T = TypeVar("_T")
_OPTIONS: dict[str, dict[str, str]] = {
    "s3": {"endpoint": "aws_endpoint", "region": "aws_region"},
    "gs": {},
    "az": {"endpoint": "azure_storage_endpoint", "account": "azure_storage_account_name"},
    "abfss": {"endpoint": "azure_storage_endpoint"},
}
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role of the machine",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or a service account of the machine",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or an identity of the machine",
}
_SIGNED = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}
"""What a request is signed with. Of a line break in one obstore makes no error: it panics, which no ``except Exception`` sees."""
_CLIENT: Any = {"timeout": "60s", "connect_timeout": "5s"}
_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=15), "backoff": {"max_backoff": timedelta(seconds=2)}}
"""Less than obstore's own three minutes: a batch that cannot be landed is better off at the broker."""
_ENDPOINT = re.compile(r"https?://([\w.-]+|\[\w*:[\w:.]*\])(?::([0-9]{1,5}))?(?:/[\w.~%/-]*)?", re.ASCII)
_NO_ENDPOINT = "{what} is no address of a server: say one such as http://minio:9000"
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"}
_NO_OBJECT = {"NoSuchKey", "NoSuchVersion", "BlobNotFound", "ResourceNotFound"}
_DENIED = {"InvalidAccessKeyId", "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "XAdminUserNotFound"}
"""Not with 401 or 403 everywhere: versitygw answers 404 to a key that it does not know."""
_FULL = {
    "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "InsufficientCapacity",
    "EntityTooLarge",
}  # fmt: skip
"""Not with 507 everywhere: Ceph answers 403 to who has used its quota up, and MinIO 400."""
_CLOCK = {"RequestTimeTooSkewed", "RequestExpired"}
_REGION = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_BUSY = "ConditionalRequestConflict"
"""From S3, to all but one of those that put one name at the same time: neither is it there yet, nor may it not be put."""
_BUSY_TRIES = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between them."""


@dataclass(frozen=True)
class Objects:
    """One bucket. ``options``: those of the URL. Raises WrongUse for one that there is not, and where obstore is missing."""

    scheme: str
    bucket: str
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        known = _OPTIONS[self.scheme]
        for name, _ in self.options:
            if name not in known:
                there_are = f"there are {' and '.join(known)}" if known else "there is none"
                raise WrongUse(f"spool {self.url}: a URL has no option {name!r}, {there_are}; else set the environment")
        endpoint = dict(self.options).get("endpoint")
        if endpoint is not None and not _is_server(endpoint):
            raise WrongUse(f"spool {self.url}: {_NO_ENDPOINT.format(what='its option endpoint')}")
        if importlib.util.find_spec("obstore") is None:
            raise WrongUse(f"spool {self.url}: object stores need obstore: pip install nsq-workers[object-store]")

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.bucket}"

    def put(self, name: str, content: Any, *, over: bool = False) -> bool:
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415

        def put() -> bool:
            waits = list(_BUSY_TRIES)
            while True:
                try:
                    self._store.put(name, bytes(content), mode="overwrite" if over else "create", use_multipart=False)
                except AlreadyExistsError as error:
                    if _BUSY not in str(error):
                        return False
                    if not waits:
                        raise
                else:
                    return True
                time.sleep(waits.pop(0))

        try:
            return self._asked(put)
        except FileNotFoundError:  # no store says so of a put
            pass
        raise StorageError(
            errno.EIO, f"{self.url} takes no object (404): see where it is looked for, and to the URL of the spool"
        )

    def list(self, folder: str, after: str = "") -> Sequence[Entry]:
        """Folders are shown only without ``after``."""
        prefix = f"{folder}/" if folder else ""
        if after:
            chunks = self._asked(lambda: list(self._store.list(folder, offset=prefix + after, chunk_size=1000)))
            return [_entry(one, prefix) for chunk in chunks for one in chunk]
        found = self._asked(lambda: self._store.list_with_delimiter(folder))
        folders = [Entry(f"{name.removeprefix(prefix)}/", 0, 0.0) for name in found["common_prefixes"]]
        return [*folders, *(_entry(one, prefix) for one in found["objects"])]

    def read(self, name: str) -> Any:
        return self._asked(lambda: memoryview(self._store.get(name).bytes()))

    def delete(self, name: str) -> None:
        try:
            self._asked(lambda: self._store.delete(name))
        except FileNotFoundError:
            pass

    def exists(self, name: str) -> Entry | None:
        try:
            return _entry(self._asked(lambda: self._store.head(name)), f"{name.rpartition('/')[0]}/")
        except FileNotFoundError:
            return None

    @property
    def _store(self) -> Any:
        return _opened(self)

    def _asked(self, ask: Callable[[], _T]) -> _T:
        from obstore.exceptions import BaseError  # noqa: PLC0415

        try:
            return ask()
        except (BaseError, FileNotFoundError, PermissionError) as error:
            failure = self._failure(error)
        # Not in the block above: what the server said, with what was signed, must be no part of a traceback either.
        raise failure

    def _failure(self, error: Exception) -> OSError:
        words = str(error)
        status, code = _STATUS.search(words), _CODE.search(words)
        said = " ".join(found[1] for found in (status, code) if found)
        if code and code[1] in _NO_BUCKET:
            return StorageError(errno.ENOENT, f"there is no bucket {self.url}: make it, or mend the URL of the spool")
        if isinstance(error, FileNotFoundError) and (code is None or code[1] in _NO_OBJECT):
            return FileNotFoundError(errno.ENOENT, f"{self.url} has no such object")
        family = _family(self.scheme)
        if "169.254." in words or "metadata.google" in words:
            return StorageError(errno.EACCES, f"{self.url}: there are no credentials: set {_CREDENTIALS[family]}")
        if (status and status[1] == "507") or (code and code[1] in _FULL):
            return StorageError(errno.ENOSPC, f"{self.url} takes no more ({said}): make room there, or raise its quota")
        if code and code[1] in _CLOCK:
            return StorageError(errno.EACCES, f"{self.url} denies access ({said}): set this machine's clock, or that server's")
        if code and code[1] in _REGION:
            return StorageError(errno.EIO, f"{self.url} is not in the region that it is looked for in ({said}): set AWS_REGION")
        if (status and status[1] in ("401", "403")) or (code and code[1] in _DENIED):
            return StorageError(
                errno.EACCES, f"{self.url} denies access ({said}): see to {_CREDENTIALS[family]}, and to what they may do there"
            )
        if said:
            return StorageError(errno.EIO, f"{self.url} cannot do it ({said}): see to that server, and to the URL of the spool")
        where = next(iter(_ENDPOINTS.get(family, ())), "its address")
        return StorageError(errno.EIO, f"{self.url} does not answer: see whether it is up, and where it is looked for ({where})")


@cache
def _opened(one: Objects) -> Any:
    from obstore.exceptions import BaseError  # noqa: PLC0415
    from obstore.store import from_url  # noqa: PLC0415

    for variable in _ENDPOINTS.get(one.scheme, ()):
        if not _is_server(os.environ.get(variable) or "http://none"):
            raise StorageError(errno.EINVAL, f"{one.url}: {_NO_ENDPOINT.format(what=variable)}")
    family = _family(one.scheme)
    signed = {name: os.environ.get(name, "") for name in _SIGNED.get(family, ())}
    for what, value in (signed | {f"its option {name}": value for name, value in one.options}).items():
        if not value.isprintable():
            raise StorageError(errno.EINVAL, f"{one.url}: {what} has a line break in it, or another such character: take it out")
    given: Any = {_OPTIONS[one.scheme][name]: value for name, value in one.options}
    endpoint = dict(one.options).get("endpoint") or next(filter(None, map(os.environ.get, _ENDPOINTS.get(one.scheme, ()))), "")
    client: Any = {**_CLIENT, **({"allow_http": True} if endpoint.startswith("http://") else {})}
    try:
        return from_url(one.url, config=given, client_options=client, retry_config=_RETRIES)
    except (BaseError, ValueError):
        pass
    raise StorageError(errno.EINVAL, f"{one.url} cannot be opened: see to the URL of the spool, and to {_CREDENTIALS[family]}")


def _is_server(endpoint: str) -> bool:
    """Whether it may be the address of a server. Of another one obstore makes no error: it panics."""
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None:
        return False
    host, port = found.groups()
    if host.startswith("[") or host.rpartition(".")[2].isdigit():
        try:
            ip_address(host.strip("[]"))
        except ValueError:
            return False
    return int(port or 0) < 2**16


def _family(scheme: str) -> str:
    """The cloud whose names the environment has."""
    return "az" if scheme == "abfss" else scheme


def _entry(one: Any, prefix: str) -> Entry:
    return Entry(one["path"].removeprefix(prefix), one["size"], one["last_modified"].timestamp())
