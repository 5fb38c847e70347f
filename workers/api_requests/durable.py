"""Small files of the state that are whole, or as they were before, after a power cut too."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Make a file's content durable, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace(fresh: Path, path: Path) -> None:
    """Give the complete file ``fresh`` the name ``path``, durably, in place of what has it."""
    sync(fresh)
    os.replace(fresh, path)
    sync(path.parent)


def write(path: Path, content: str | bytes) -> None:
    """Durable on return. Raises OSError; then the file is as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content.encode() if isinstance(content, str) else content)
    replace(fresh, path)


def write_first(path: Path, text: str) -> str:
    """Write ``text`` unless the file is there already, whoever comes at the same time; returns what it holds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(text)
        sync(fresh)
        os.link(fresh, path)
    except FileExistsError:
        pass
    finally:
        fresh.unlink(missing_ok=True)
    sync(path.parent)
    return path.read_text()
