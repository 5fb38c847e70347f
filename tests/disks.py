"""Disks with faults for servers under test: slow or failing syncs, and no byte left, by a preloaded library or a small tmpfs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from framework.testing.servers import Server, ServerMissing

_SOURCE = Path(__file__).with_name("disk.c")


def library(folder: Path) -> Path:
    """The preloaded library, built into ``folder``. Raises ServerMissing where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None or "linux" not in sysconfig.get_platform():
        raise ServerMissing("a disk with faults is built by `cc`, and there is none on the PATH")
    built = folder / "disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, _SOURCE, "-ldl"], check=True)
    return built


class Disk:
    """What one server's disk does; to be changed while the server runs."""

    def __init__(self, built: Path, faults: Path) -> None:
        self._built = built
        self._faults = faults
        faults.mkdir()

    def under(self, server: Server) -> Server:
        """The server, not started yet, on this disk."""
        server.command[:0] = [
            "env", f"LD_PRELOAD={self._built}", f"DISK_FAULTS={self._faults}", f"DISK_FOLDER={server.data}",
        ]  # fmt: skip
        return server

    def sync_takes(self, seconds: float) -> None:
        """How much longer than it does."""
        self._set("sync_ms", round(seconds * 1000))

    def is_full(self, full: bool = True) -> None:
        """No file of the server can grow any more."""
        self._set("full", int(full))

    def fails_to_sync(self, fails: bool = True) -> None:
        self._set("bad_sync", int(fails))

    def dies_before(self, writes: int) -> None:
        """The server is killed before so many more writes; 0: no more."""
        self._set("dies_before", writes)

    def _set(self, what: str, number: int) -> None:
        fresh = self._faults / f"{what}.new"
        fresh.write_text(str(number))
        fresh.replace(self._faults / what)


@contextmanager
def tmpfs(folder: Path, size: int) -> Iterator[None]:
    """A file system of ``size`` bytes in ``folder``. Raises ServerMissing for those who may not mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = shutil.which("mount") and os.geteuid() == 0
    if not mounted or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=False).returncode:
        raise ServerMissing("only root may mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def unmount_below(folder: Path) -> None:
    """For the file systems of tests that were killed: a folder in which one is mounted cannot be removed."""
    for one in psutil.disk_partitions(all=True):
        if Path(one.mountpoint).is_relative_to(folder):
            subprocess.run(["umount", "-l", one.mountpoint], check=True)
