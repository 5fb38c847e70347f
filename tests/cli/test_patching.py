"""What ``workers run`` does before it imports anything else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from framework.cli.patching import has_plugins

PLUGIN = "[gevent.plugins.monkey.did_patch_all]\nnamed = plugin_of_gevent:told\n"
ASK = "from framework.cli.patching import patch; patch(); import sys; print('importlib.metadata' in sys.modules, end=' ')"


def package(folder: Path, name: str, declares: str) -> None:
    (folder / name).mkdir()
    (folder / name / "METADATA").write_text("Metadata-Version: 2.1\nName: one\nVersion: 1\n")
    (folder / name / "entry_points.txt").write_text(declares)


def asked(*folders: Path) -> str:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    return subprocess.run([sys.executable, "-c", ASK], env=environ, capture_output=True, text=True, check=True).stdout


def test_a_package_that_is_a_plugin_of_gevent_is_told_that_all_is_patched(tmp_path: Path) -> None:
    package(tmp_path, "one-1.dist-info", PLUGIN)
    (tmp_path / "plugin_of_gevent.py").write_text("def told(event):\n    print(type(event).__name__, end=' ')\n")
    assert asked(tmp_path) == "GeventDidPatchAllEvent True "


def test_without_one_the_packages_are_not_read_for_each_module_that_is_patched(tmp_path: Path) -> None:
    assert asked(tmp_path) == "False "


@pytest.mark.parametrize(
    ("name", "declares", "has"),
    [
        ("one-1.dist-info", PLUGIN, True),
        ("one.egg-info", PLUGIN, True),
        ("one-1.dist-info", "[console_scripts]\none = one:main\n", False),
        ("gevent-1.dist-info", PLUGIN, False),
    ],
)
def test_a_plugin_is_found_by_what_packages_declare(tmp_path: Path, name: str, declares: str, has: bool) -> None:
    package(tmp_path, name, declares)
    assert has_plugins([str(tmp_path / "nosuch"), str(tmp_path)]) is has


def test_what_is_no_folder_may_hold_one(tmp_path: Path) -> None:
    (tmp_path / "packages.zip").touch()
    assert has_plugins([str(tmp_path / "packages.zip")])
