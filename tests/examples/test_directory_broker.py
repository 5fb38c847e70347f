"""The example of a transport of one's own serves every verb once it is installed; tests/conformance runs the suite over it."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

from framework.testing.workers import call, working

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "directory_broker"


def test_it_fits_in_150_lines() -> None:
    assert len((EXAMPLE / "directory_broker.py").read_text().splitlines()) < 150


def install(folder: Path) -> None:
    """What pip leaves of the example: its module, and its entry points in the metadata."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    (scheme,) = project["entry-points"]["workers.transports"].items()
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (info / "entry_points.txt").write_text("[workers.transports]\n{} = {}\n".format(*scheme))
    shutil.copy(EXAMPLE / "directory_broker.py", folder)


def test_installed_beside_the_framework_it_serves_every_verb(tmp_path: Path) -> None:
    install(tmp_path / "installed")
    env = {"PYTHONPATH": str(tmp_path / "installed"), "BROKER_URL": f"dir://{tmp_path}/queue"}
    checked = call("check", "examples.hello", cwd=ROOT, env=env)
    assert (checked.returncode, "a directory: a lease is 60 s" in checked.stdout) == (0, True), checked
    published = call("publish", "greetings", cwd=ROOT, env=env, stdin=b"world\n")
    assert published.returncode == 0, published
    with working("run", "examples.hello", cwd=ROOT, env=env) as worker:
        worker.wait_for("hello, world")
        assert worker.stop() == 0
    assert not list((tmp_path / "queue" / "greetings").iterdir())
