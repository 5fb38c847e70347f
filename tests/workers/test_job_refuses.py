"""What the job cannot work with is told in one sentence, before Spark is started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from framework.testing.servers import ServerMissing
from tests.disks import tmpfs

pytest.importorskip("pyspark")

from workers.api_requests.stream import command

Told = Callable[..., tuple[int, list[str]]]
ROOT = Path(__file__).resolve().parents[2]


def folders(folder: Path) -> list[str]:
    return [f"--output={folder / 'out'}", f"--state={folder / 'state'}"]


def job(folder: Path, *more: str, stdout: str = "/dev/null") -> tuple[int, list[str]]:
    """The exit code, and what it said on stderr; no Java can be found. ``stdout``: as the shell has it."""
    begun = [sys.executable, "-m", "workers.api_requests.stream", *folders(folder), *more]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" >{stdout}', "sh", *begun], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False,
        timeout=60, env={**os.environ, "JAVA_HOME": str(folder / "none")},
    )  # fmt: skip
    return done.returncode, done.stderr.splitlines()


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """As ``job``, without a process for each of many words that are read in the same way."""

    def tell(*more: str) -> tuple[int, list[str]]:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
        monkeypatch.setattr(sys, "argv", ["job", *folders(tmp_path), *more])
        return command.main(), capsys.readouterr().err.splitlines()

    return tell


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk without a free byte."""
    folder = tmp_path / "full"
    try:
        with tmpfs(folder, 16 * 1024):
            for name in ("out", "state"):
                (folder / name).mkdir()
            (folder / "fill").write_bytes(b"")
            with pytest.raises(OSError, match="No space"), (folder / "fill").open("wb", buffering=0) as fill:
                while fill.write(b"x" * 1024):
                    pass
            yield folder
    except ServerMissing as missing:
        pytest.skip(str(missing))


def test_a_full_disk(full: Path) -> None:
    code, (said,) = job(full, "--until=0")
    assert code == 1
    assert said.startswith("job: [Errno 28] No space left on device")


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    log = tmp_path / "missing" / "spark.log"
    assert job(tmp_path, "--until=0", f"--log={log}") == (1, [f"job: [Errno 2] No such file or directory: '{log}'"])


def test_a_stdout_that_takes_nothing(tmp_path: Path) -> None:
    assert job(tmp_path, "--until=0", stdout="/dev/full") == (1, ["job: [Errno 28] No space left on device"])


def test_no_stdout_at_all_is_no_reason_to_end(tmp_path: Path) -> None:
    """The log, which comes later, is."""
    code, (said,) = job(tmp_path, "--until=0", f"--log={tmp_path / 'missing' / 'spark.log'}", stdout="&-")
    assert (code, said.partition(":")[2][:10]) == (1, " [Errno 2]")


@pytest.mark.parametrize("every", ["nan", "inf", "-1", "1e9"])
def test_a_time_between_batches_that_is_none(tmp_path: Path, told: Told, every: str) -> None:
    code, (said,) = told("--follow", f"--every={every}")
    assert code == 2
    assert "--every" in said
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "time", ["yesterday", "2024-06-01", "2024-06-01T00:00:00", "1717200000", "", "0001-01-01T00:00:00+14:00"]
)
def test_a_time_to_begin_at_that_is_none(tmp_path: Path, told: Told, time: str) -> None:
    code, (said,) = told("--follow", f"--from={time}")
    assert code == 2
    assert f"{time!r}: say a time with its zone, such as 2024-06-01T00:00:00Z" in said
    assert not (tmp_path / "state").exists()


def test_a_spool_that_nobody_ever_made(tmp_path: Path, told: Told) -> None:
    """It ended with 0 and no line, each time anew."""
    spool = f"--spool={tmp_path / 'spol'}"
    code, (said,) = told("--available-now", spool)
    assert code == 2
    assert f"{spool.replace('=', ' ')}: there is no spool in archive, growth, spam: name the folder that the handlers" in said
    assert list(tmp_path.iterdir()) == []
    collectors(tmp_path / "spol", "archive", "spam")
    (tmp_path / "spol" / "growth").mkdir()
    (tmp_path / "spol" / "growth" / "epoch").write_text("0\n")  # which a query has made that followed
    assert "there is no spool in growth:" in told("--available-now", spool)[1][0]


def test_a_spool_that_nobody_has_made_so_far_is_waited_for_and_named(tmp_path: Path) -> None:
    collectors(tmp_path / "spol", "archive", "growth")
    spool = f"--spool={tmp_path / 'spol'}"
    _, said = job(tmp_path, "--follow", spool)
    assert said[0] == (
        f"job: {spool.replace('=', ' ')}: there is no spool in spam so far: it is waited for; if the handlers land elsewhere, "
        "name that folder"
    )
    collectors(tmp_path / "spol", "spam")
    assert not any("no spool" in line for line in job(tmp_path, "--follow", spool)[1])


def collectors(spool: Path, *channels: str) -> None:
    """What a handler that lands makes first."""
    for channel in channels:
        (spool / channel / "main").mkdir(parents=True)


def test_a_job_begins_once(tmp_path: Path) -> None:
    collectors(tmp_path / "spool", "archive", "growth", "spam")

    def begun(*since: str) -> tuple[int, str]:
        code, said = job(tmp_path, "--available-now", f"--spool={tmp_path / 'spool'}", *since)
        return code, said[-1]

    assert begun("--from=2024-06-01T00:00:00Z")[0] == 1, "there is no Java"
    assert begun("--from=2024-06-01T02:00:00+02:00")[0] == 1, "the same time"
    assert begun()[0] == 1
    code, said = begun("--from=2024-06-02T00:00:00Z")
    assert (code, "began with 2024-06-01T00:00:00+00:00, and goes on from there: leave --from out" in said) == (2, True)
    (tmp_path / "state" / "from").unlink()
    (tmp_path / "state" / "checkpoints").mkdir()
    code, said = begun("--from=2024-06-01T00:00:00Z")
    assert (code, "began with what the spool held, and goes on" in said) == (2, True)


@pytest.mark.parametrize("zone", ["Paris", "europe/paris", "+2", "+19:00", "-18:01", "", "../etc/localtime", "ROC"])
def test_a_time_zone_that_java_does_not_know(tmp_path: Path, told: Told, zone: str) -> None:
    code, (said,) = told("--follow", f"--time-zone={zone}")
    assert code == 2
    assert f"{zone!r} is no time zone: say one such as UTC, Europe/Paris or +02:00" in said
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("zone", ["UTC", "America/Argentina/Buenos_Aires", "+05:30", "-18:00", "EST"])
def test_a_time_zone_that_java_knows(zone: str) -> None:
    assert command._Zone().convert(zone, None, None) == zone


@pytest.mark.parametrize("master", ["nonsense", "", "local[0]", "local[x]", "spark://", "spark://host", "http://host:7077"])
def test_a_master_that_spark_does_not_know(tmp_path: Path, told: Told, master: str) -> None:
    code, (said,) = told("--until=0", f"--master={master}")
    assert code == 2
    assert f"{master!r} is no master of Spark" in said
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("content", ["[]", "null", "3", '{"published": null}', '{"published": [1]}', "{}", "{", ""])
def test_a_summary_that_does_not_hold_a_number_is_as_one_that_is_not_there_yet(tmp_path: Path, content: str) -> None:
    (tmp_path / "summary").write_text(content)
    assert command._target(None, tmp_path / "summary") is None
