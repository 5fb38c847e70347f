"""What servers in Java need in tests: a Java machine, and their jars, which Maven copies once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from framework.testing.servers import ServerMissing, made_once

_JAVA = 17


def binary(server: str) -> str:
    """JAVA_HOME's, or the PATH's. Raises ServerMissing, in the name of ``server``, unless it is 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if java is None:
        raise ServerMissing(f"{server} needs Java {_JAVA} or newer, and there is no `java` on the PATH")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = said.split('"')[1] if '"' in said else "0"
    if int(version.split(".")[0].split("-")[0]) < _JAVA:
        raise ServerMissing(f"{server} needs Java {_JAVA} or newer, and this is {version}")
    return java


def jars(server: str, pom: Path, home: Path, *settings: str) -> Path:
    """The folder ``home / "lib"`` with the jars that ``pom`` names, copied there by Maven as it is configured here, once.

    Raises ServerMissing, in the name of ``server``.
    """

    def copy(fresh: Path) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise ServerMissing(f"{server}'s jars are copied by Maven, and there is no `mvn` on the PATH")
        copied = subprocess.run(
            [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *settings, f"-DoutputDirectory={fresh}/lib"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if copied.returncode != 0:
            raise ServerMissing(f"mvn could not copy {server}'s jars: {copied.stdout.strip()[-800:]}")

    return made_once(home, "lib", copy)
