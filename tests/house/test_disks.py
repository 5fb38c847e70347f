"""The small file systems of tests: one that was killed leaves its own mounted."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.disks import tmpfs, unmount_below


def test_what_a_killed_test_has_left_mounted_goes_and_what_is_mounted_elsewhere_stays(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "other", 1 << 20):
        left = tmp_path / "scratch" / "a test" / "disk"
        left.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", left], check=True)
        try:
            unmount_below(tmp_path / "scratch")
            assert not left.is_mount()
            assert (tmp_path / "other").is_mount()
            shutil.rmtree(tmp_path / "scratch")
        finally:
            subprocess.run(["umount", "-l", left], stderr=subprocess.DEVNULL, check=False)
