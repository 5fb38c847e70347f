"""Which storages a spool can lie in, by the scheme of its URL. A library is imported where its storage is first used."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from framework.errors import WrongUse
from framework.spool.storage import Remote

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")  # also dbfs:/folder; one letter alone is a drive
_OBJECTS = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "abfs": "abfss", "abfss": "abfss"}
_EXAMPLES = "s3://bucket/spool, gs://bucket/spool, az://container/spool or webhdfs://namenode:9870/spool"


def is_url(given: str) -> bool:
    return _URL.match(given) is not None


def storage_of(url: str) -> Remote:
    """The folder of a storage that ``url`` names. Raises WrongUse, in words that hold no credentials."""
    scheme = url.partition(":")[0].lower()
    if scheme in _OBJECTS:
        address, folder, options = _parts(url)
        from framework.spool.objects import Objects  # noqa: PLC0415

        return Remote(Objects(_OBJECTS[scheme], address, options), folder)
    if scheme in ("webhdfs", "swebhdfs"):
        address, folder, options = _parts(url)
        from framework.spool.hdfs import Hdfs  # noqa: PLC0415

        return Remote(Hdfs(scheme, address, options), folder)
    if scheme == "hdfs":
        raise WrongUse(f"{_without_secrets(url)!r}: a spool reaches HDFS by HTTP, so say webhdfs://namenode:9870/spool")
    raise WrongUse(f"{_without_secrets(url)!r} is a URL: give a path, or a URL that a spool can have, {_EXAMPLES}")


def _parts(url: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """The bucket or host, the folder in it, and the options behind ``?``."""
    parts = urlsplit(url)
    if ":" in parts.netloc.rpartition("@")[0]:
        raise WrongUse(f"the URL of spool {_without_secrets(url)} holds credentials: set them in the environment")
    folder = "/".join(part for part in parts.path.split("/") if part)
    if not parts.netloc or not folder or ".." in folder.split("/"):
        raise WrongUse(f"spool {_without_secrets(url)!r}: a bucket and a folder in it are needed, as in {_EXAMPLES}")
    return parts.netloc, folder, tuple(sorted(parse_qsl(parts.query, keep_blank_values=True)))


def _without_secrets(url: str) -> str:
    return re.sub(r"//[^/@]*:[^/@]*@", "//", url.partition("?")[0])
