"""The clients that are compared, and how each is installed and started. It measures nothing.

nsq-py and pynsq are both imported as ``nsq``, so no environment can hold both: each peer has a folder of its own in .cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = ROOT / ".cache" / "bench"
VERSIONS = {"nsq-py": "0.1.12", "gnsq": "1.0.2", "pynsq": "0.9.1", "greenstalk": "2.1.1", "nats-py": "2.16.0"}
NSQ = ("ours", "bare-loop", "go-nsq", "nsq-py", "gnsq", "pynsq")
BEANSTALKD = ("ours", "bare-socket", "greenstalk")
NATS = ("ours", "bare-nats", "nats-py")


def install(name: str) -> None:
    """Put the peer and what it needs in its folder, at the versions of constraints.txt; does nothing when it is there."""
    folder = _FOLDERS / f"{name}-{VERSIONS[name]}"
    if folder.exists():
        return
    print(f"installing {name} {VERSIONS[name]}", file=sys.stderr)
    fresh = folder.with_suffix(".new")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "-c", ROOT / "constraints.txt", "--target", fresh, "--upgrade", f"{name}=={VERSIONS[name]}"], check=True
    )
    fresh.rename(folder)


def start(name: str, job: str, address: str, *more: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
    """Start the client as a process: ``job`` is one of the functions in its script; ``address`` the server's host:port.

    ``more``: for the bare loop, a topic to publish to that is not its own.
    """
    if name == "go-nsq":
        return subprocess.Popen([_built("go_nsq"), job, address], stdin=subprocess.DEVNULL, stdout=stdout)
    path = [str(ROOT)]
    if name in VERSIONS:
        install(name)
        path.insert(0, str(_FOLDERS / f"{name}-{VERSIONS[name]}"))
    script = ROOT / "benchmarks" / "clients" / f"{name.replace('-', '_')}.py"
    return subprocess.Popen(
        [sys.executable, "-P", script, job, address, *more],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
    )


def _built(name: str) -> Path:
    """The program of the Go module ``clients/<name>``, built once."""
    program = _FOLDERS / name
    if not program.exists():
        print(f"building {name}", file=sys.stderr)
        _FOLDERS.mkdir(parents=True, exist_ok=True)
        subprocess.run(["go", "build", "-o", program, "."], cwd=ROOT / "benchmarks" / "clients" / name, check=True)
    return program


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:  # some peers know no SIGTERM
        process.kill()
        process.wait()
