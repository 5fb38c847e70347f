"""Which storages a spool can lie in, by the scheme of its URL. A library is imported where its storage is first used."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from framework.errors import WrongUse
from framework.spool.storage import Remote

# Also dbfs:/folder and s3:folder; one letter alone is a drive.
_SCHEMES = "(?i:s3a?|gs|az|abfss?|s?webhdfs|hdfs|file)"
_CUT = re.compile(rf"{_SCHEMES}//|://")
"""A URL whose colon or scheme is missing. As a path it would be a folder of this machine, beside the one that was meant."""
_URL = re.compile(rf"[a-zA-Z][a-zA-Z0-9+.-]+:/|{_SCHEMES}:")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
_OBJECTS = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "abfs": "abfss", "abfss": "abfss"}
_EXAMPLES = "s3://bucket/spool, gs://bucket/spool, az://container/spool or webhdfs://namenode:9870/spool"


def is_url(given: str) -> bool:
    return (_URL.match(given.lstrip()) or _CUT.match(given.lstrip())) is not None


def storage_of(url: str) -> Remote:
    """The folder of a storage that ``url`` names. Raises WrongUse, in words that hold no credentials."""
    if _CUT.match(url.lstrip()):
        raise WrongUse(
            f"{_without_secrets(url)!r} is no whole URL: what stands before its // is missing or lacks the colon; say one "
            f"such as {_EXAMPLES}, or begin a path with ./"
        )
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
    shown = _without_secrets(url)
    if "#" in url or _CONTROLS.search(url):
        raise WrongUse(f"spool {shown!r}: the name of a spool has no # and no control characters, so leave them out")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise WrongUse(f"spool {shown!r} is no URL: say one such as {_EXAMPLES}") from None
    given = tuple(sorted(parse_qsl(parts.query, keep_blank_values=True)))
    if _holds_secrets(parts.scheme, parts.netloc) or any("@" in value for _, value in given):
        raise WrongUse(f"the URL of spool {shown} holds credentials: set them in the environment")
    folder = "/".join(part for part in parts.path.split("/") if part)
    if not parts.netloc or not folder or {".", ".."} & {*folder.split("/")}:
        raise WrongUse(f"spool {shown!r}: a bucket and a folder in it are needed, as in {_EXAMPLES}")
    return parts.netloc, folder, given


def _holds_secrets(scheme: str, netloc: str) -> bool:
    """A secret with a slash in it ends the netloc, so that no ``@`` is in that. No bucket has a colon, and no host an ``@``."""
    if "webhdfs" in scheme:
        return "@" in netloc
    return ":" in netloc or ("@" in netloc and not scheme.startswith("abfs"))


def _without_secrets(url: str) -> str:
    plain = url.partition("?")[0]
    scheme, slashes, rest = plain.partition("//")
    if "@" in rest and not scheme.lower().startswith("abfs"):
        return scheme + slashes + rest.rpartition("@")[2]
    if ":" in rest.partition("/")[0] and "webhdfs" not in scheme.lower():
        return f"{scheme}//..."
    return plain
