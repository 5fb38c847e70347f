"""An output on a file system that is known by a URL, through Hadoop's FileSystem: with Spark's own settings and keys for it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from framework import WrongUse

_PIECE = 1 << 20
"""Bytes that are handed to the JVM at once: there they are text first, and its heap may be small."""


class HadoopOutput:
    """The folder ``url``, such as ``hdfs://host/requests`` or ``s3a://bucket/requests``. See `output.Output`.

    Raises WrongUse where Spark has no file system for the URL. Every other word with the file system raises OSError.
    """

    def __init__(self, url: str, spark: SparkSession) -> None:
        self.url = url.rstrip("/")
        context: Any = spark.sparkContext
        self._jvm: Any = context._jvm
        hadoop, conf = self._jvm.org.apache.hadoop.fs, context._jsc.hadoopConfiguration()
        try:
            self._system = self._path("").getFileSystem(conf)
            self._context = hadoop.FileContext.getFileContext(self._path("").toUri(), conf)
        except Py4JJavaError as error:
            raise WrongUse(f"--output {url}: Spark has no such file system: {_said(error)}") from None

    def __str__(self) -> str:
        return self.url

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def read(self, name: str) -> bytes | None:
        with _as_oserror(self.url):
            if not self._system.exists(self._path(name)):
                return None
            stream = self._system.open(self._path(name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def write(self, name: str, content: bytes) -> None:
        with _as_oserror(self.url):
            self._context.rename(self._fresh(name, content), self._path(name), self._how("OVERWRITE"))

    def claim(self, name: str, text: str) -> str:
        with _as_oserror(self.url):
            if not self._system.exists(self._path(name)):
                try:
                    self._context.rename(self._fresh(name, text.encode()), self._path(name), self._how("NONE"))
                except Py4JJavaError:
                    if not self._system.exists(self._path(name)):
                        raise
        return (self.read(name) or b"").decode()

    def make(self, name: str) -> None:
        with _as_oserror(self.url):
            self._system.mkdirs(self._path(name))

    def remove(self, pattern: str) -> None:
        with _as_oserror(self.url):
            for found in self._system.globStatus(self._path(pattern)) or ():
                self._system.delete(found.getPath(), True)

    def has_tables(self) -> bool:
        with _as_oserror(self.url):
            if not self._system.exists(self._path("")):
                return False
            files = self._system.listFiles(self._path(""), True)
            while files.hasNext():
                if files.next().getPath().getName().endswith(".parquet"):
                    return True
            return False

    def rows(self, pattern: str) -> int | None:
        return None

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.url_of(name))

    def _fresh(self, name: str, content: bytes) -> Any:
        path = self._path(posixpath.join(posixpath.dirname(name), f".{posixpath.basename(name)}.new"))
        _fill(self._system, path, content)
        return path

    def _how(self, name: str) -> Any:
        kind = self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename")
        options = self._jvm.java.lang.reflect.Array.newInstance(kind, 1)
        options[0] = self._jvm.java.lang.Enum.valueOf(kind, name)
        return options


def write_local(path: Path, content: bytes) -> None:
    """Give the file ``path`` of this machine another content, through Spark's file system for local folders, whose folder is
    there. On return the content is durable, and its name where the folder is synced. Readers see the file whole, or as it was
    before; after a crash too. Raises OSError."""
    context: Any = SparkContext.getOrCreate()
    hadoop = context._jvm.org.apache.hadoop.fs
    with _as_oserror(str(path)):
        # The raw one: of a file with a checksum beside it the two would change one after the other.
        system = hadoop.FileSystem.getLocal(context._jsc.hadoopConfiguration()).getRawFileSystem()
        fresh, place = (hadoop.Path(one.as_uri()) for one in (path.with_name(f".{path.name}.new"), path))
        _fill(system, fresh, content)
        _rename(system, fresh, place)


def _fill(system: Any, path: Any, content: bytes) -> None:
    stream = system.create(path, True)
    try:
        for begin in range(0, len(content), _PIECE):
            stream.write(content[begin : begin + _PIECE])
        if stream.hasCapability("hsync"):
            stream.hsync()
    finally:
        stream.close()


def _rename(system: Any, fresh: Any, place: Any) -> None:
    if not system.rename(fresh, place):
        raise OSError(f"{fresh} could not be given the name {place}")


@contextmanager
def _as_oserror(where: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise OSError(f"{where}: {_said(error)}") from None


def _said(error: Py4JJavaError) -> str:
    """Java's own words."""
    return str(error.java_exception.toString()).splitlines()[0]
