"""Spark as the tests start it: planned for short runs, and with the JVM's classes from an archive that is made once.

A JVM loads some 20,000 classes before Spark's first query has ended; from a class data sharing archive (java(1),
``-XX:SharedArchiveFile``) it takes a third of the time. An archive that does not fit the JVM or the jars is ignored by it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyspark

from framework.testing.servers import ROOT
from workers.api_requests.stream.session import SHORT, home_without_zip

CACHE = ROOT / ".cache" / "spark"
# Not in a spark-defaults.conf: its folder would be on the class path, where no archive may have one that is not empty.
_SETTINGS = {name: value for name, value in SHORT.items() if name.startswith("spark.sql.")} | {"spark.ui.enabled": "false"}
_FLAGS = " ".join([SHORT["spark.driver.extraJavaOptions"], *(f"-D{name}={value}" for name, value in _SETTINGS.items())])
ANY_JVM = {"JDK_JAVA_OPTIONS": SHORT["spark.driver.extraJavaOptions"]}
"""For an environment: what every Java below it takes, those of a cluster as well, whose class path no archive has."""
_TRAINING = Path(__file__).parent / "scripts" / "train_spark.py"
PATIENCE = 100.0
"""Seconds for the training, which the first test that needs Spark waits for; it has 400."""
BEFOREHAND = 250.0
"""Seconds for the training where no test has begun yet."""
FAILED = CACHE / "failed.log"
"""Says that the training ended in an error: each Spark of the tests takes three times as long to start, until it is mended."""
_AGAIN = 3600.0
"""Seconds after which it is tried again where that was not enough: the machine may have been busy."""


def environment(java: str, patience: float = PATIENCE) -> dict[str, str]:
    """What a process needs in its environment so that every Spark below it starts so. ``java``: the command."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may begin at once
        home = home_without_zip(CACHE)
        archive = CACHE / f"classes-{_key(java, home)}.jsa"
        if not archive.exists() and not _tried(archive):
            _train(archive, home, patience)
    shared = f" -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off -Xlog:class+path=off" if archive.exists() else ""
    return {"SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": _FLAGS + shared}


def _key(java: str, home: Path) -> str:
    """Another JVM, or other jars, another archive."""
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    jars = (home / "jars").resolve()
    return hashlib.sha256(f"{version} {pyspark.__version__} {home} {jars.stat().st_mtime_ns}".encode()).hexdigest()[:16]


def _tried(archive: Path) -> bool:
    """Whether the training took too long a short while ago."""
    mark = archive.with_suffix(".tried")
    return mark.exists() and time.time() - mark.stat().st_mtime < _AGAIN


def _train(archive: Path, home: Path, patience: float) -> None:
    """Run what the tests do, in short, in a JVM that writes at its end which classes it has loaded. Best effort."""
    for old in [*CACHE.glob("*.jsa*"), *CACHE.glob("*.tried"), *CACHE.glob("*.log")]:
        old.unlink()
    archive.with_suffix(".tried").touch()
    fresh = archive.with_suffix(".jsa.new")
    environ = os.environ | {
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_SUBMIT_OPTS": f"{_FLAGS} -XX:ArchiveClassesAtExit={fresh}",
    }
    with (CACHE / "training.log").open("wb") as log, suppress(subprocess.TimeoutExpired):
        ended = subprocess.run([sys.executable, _TRAINING], env=environ, stdout=log, stderr=log, timeout=patience, check=False)
        if ended.returncode == 0 and fresh.exists():
            fresh.rename(archive)
        else:
            FAILED.write_text(f"the training of Spark ended with {ended.returncode}: {CACHE / 'training.log'} has why\n")
    fresh.unlink(missing_ok=True)


if __name__ == "__main__":  # beforehand, so that no test waits; in a process group, which whoever started it can end as a whole
    os.setpgid(0, 0)
    environment(sys.argv[1], BEFOREHAND)
