"""The job's folders: one job at a time, and nobody's archive is replaced by another's batches."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from framework import WrongUse
from framework.testing.servers import ServerMissing
from tests.conftest import missing
from tests.disks import tmpfs
from workers.api_requests.stream.folders import Folders, Gone, check_output, obstacles, take
from workers.api_requests.stream.output import LocalOutput


def folders(folder: Path, state: str = "state", output: str = "output") -> Folders:
    return Folders(folder / "spool", LocalOutput(folder / output), folder / state)


def where(there: Folders) -> Path:
    assert isinstance(there.output, LocalOutput)
    return there.output.folder


def works(there: Folders) -> None:
    """As much as a job does: it archives a batch, and Spark keeps a checkpoint."""
    handle = take(there)
    (where(there) / "archive").mkdir(exist_ok=True)
    (where(there) / "archive" / "batch-000000000.parquet").write_bytes(b"rows")  # output.write would start a Spark for it
    (there.state / "checkpoints").mkdir(exist_ok=True)
    os.close(handle)


def test_a_job_goes_on_where_it_was(tmp_path: Path) -> None:
    works(folders(tmp_path))
    works(folders(tmp_path))


def test_folders_may_be_moved_together(tmp_path: Path) -> None:
    works(folders(tmp_path))
    (tmp_path / "state").rename(tmp_path / "s")
    (tmp_path / "output").rename(tmp_path / "o")
    works(folders(tmp_path, "s", "o"))


def test_an_output_that_is_the_spool_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "spool")
    for name in ("spool", "link"):
        with pytest.raises(WrongUse, match=f"{name} is the folder of --spool: name another one"):
            take(folders(tmp_path, output=name))
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize(("spool", "output", "state", "words"), [
    ("spool", "output", "output/archive", "--state HERE/output/archive lies in HERE/output/archive, which --output has"),
    ("spool", "output", "output/growth/state", "--state HERE/output/growth/state lies in HERE/output/growth, which --output"),
    ("spool", "output", "spool/spam/state", "--state HERE/spool/spam/state lies in HERE/spool/spam, which --spool has"),
    ("output/archive/in", "output", "state", "--spool HERE/output/archive/in lies in HERE/output/archive, which --output"),
    ("spool", "spool/spam", "state", "--output HERE/spool/spam lies in HERE/spool/spam, which --spool has for its own"),
    ("spool", "link/archive/out", "state", "--output HERE/spool/archive/out lies in HERE/spool/archive, which --spool"),
])  # fmt: skip
def test_a_folder_within_what_another_one_holds_of_a_channel_is_refused(
    tmp_path: Path, spool: str, output: str, state: str, words: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "spool")
    there = Folders(tmp_path / spool, LocalOutput(tmp_path / output), tmp_path / state)
    with pytest.raises(WrongUse, match=f"^{words.replace('HERE', str(tmp_path))}.*: name a folder outside of it$"):
        take(there)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize(
    ("output", "state"), [("out", "out/state"), ("out", "spool/state"), ("out", "out"), ("state/archive", "state")]
)
def test_folders_may_lie_in_one_another_where_none_is_mixed_up(tmp_path: Path, output: str, state: str) -> None:
    os.close(take(folders(tmp_path, state, output)))
    works(folders(tmp_path, state, output))


@pytest.mark.parametrize("state", ["another", "fresh"])
def test_a_job_with_another_state_does_not_replace_what_this_one_archived(tmp_path: Path, state: str) -> None:
    works(folders(tmp_path))
    if state == "another":
        works(folders(tmp_path, state, "elsewhere"))
    with pytest.raises(WrongUse, match="holds what a job with another state wrote, and would have its files replaced: name"):
        take(folders(tmp_path, state))
    works(folders(tmp_path))


def does_a_batch(there: Folders) -> None:
    works(there)
    (there.state / "tally").mkdir(exist_ok=True)
    for channel in ("archive", "growth"):
        (there.state / "tally" / f"{channel}.json").write_text('{"batch": 3, "before": {}, "last": {"parsed": 1}}')
        for log in ("offsets", "commits"):
            folder = there.state / "checkpoints" / channel / log
            folder.mkdir(parents=True, exist_ok=True)
            for batch in (2, 3):
                (folder / f"{batch}").touch()
                (folder / f".{batch}.crc").touch()


@pytest.mark.parametrize(
    "gone", ["checkpoints", "checkpoints/growth", "checkpoints/growth/offsets", "checkpoints/growth/offsets/3"]
)
def test_a_job_whose_checkpoint_is_gone_or_an_earlier_one_does_not_count_new_lines_for_done_ones(
    tmp_path: Path, gone: str
) -> None:
    """Exit 0, and of 3,000 lines the 2,000 new ones were in no figure."""
    does_a_batch(there := folders(tmp_path))
    works(there)
    (there.state / gone).rename(tmp_path / "away")
    channel = "archive" if gone == "checkpoints" else "growth"
    with pytest.raises(
        WrongUse, match=f"batch 3 of {channel} is done, and .*/checkpoints/{channel} does not know it any more: put"
    ):
        take(there)
    (tmp_path / "away").rename(there.state / gone)
    works(there)


@pytest.mark.parametrize("how", ["moved", "another folder"])
def test_an_output_that_was_moved_is_not_begun_anew(tmp_path: Path, how: str) -> None:
    """What was archived is not archived again: the new one would lack it for good."""
    does_a_batch(there := folders(tmp_path))
    where(there).rename(tmp_path / "elsewhere")
    if how == "another folder":
        where(there).mkdir()
    with pytest.raises(WrongUse, match="is not there any more, or is another folder: put it back, and the job goes on"):
        take(there)
    assert where(there).exists() == (how == "another folder"), "else it could not be put back by its name"
    does_a_batch(folders(tmp_path, output="elsewhere"))


@pytest.mark.parametrize("how", ["moved", "removed", "another job's"])
def test_an_output_that_goes_while_the_job_works_is_missed(tmp_path: Path, how: str) -> None:
    os.close(take(there := folders(tmp_path)))
    check_output(there)
    where(there).rename(tmp_path / "elsewhere")
    if how == "removed":
        (tmp_path / "elsewhere" / ".job").unlink()
        (tmp_path / "elsewhere").rmdir()
    elif how == "another job's":
        os.close(take(folders(tmp_path, "another state")))
    with pytest.raises(Gone, match="put it back"):
        check_output(there)


def test_two_that_begin_one_output_at_the_same_time_do_not_share_it(tmp_path: Path) -> None:
    held = take(folders(tmp_path))
    with pytest.raises(WrongUse, match="another state"):
        take(folders(tmp_path, "another"))
    os.close(held)


def test_what_an_earlier_version_made_goes_on_and_its_archive_without_its_state_does_not(tmp_path: Path) -> None:
    works(folders(tmp_path))
    (tmp_path / "output" / ".job").unlink()
    (tmp_path / "state" / "name").unlink()
    with pytest.raises(WrongUse, match="another state"):
        take(folders(tmp_path, "fresh"))
    works(folders(tmp_path))
    assert (tmp_path / "output" / ".job").exists()


def test_what_an_earlier_version_wrote_gets_folders_for_its_batches_also_where_a_kill_broke_that_off(tmp_path: Path) -> None:
    """Without them Spark could not read the old and the new in one: their paths would name other columns."""
    kinds = ((7, "upto"), (8, "batch"))
    names = {f"archive/date=2024-05-{day}/batch={batch}/{kind}-{batch:09d}.parquet"
             for day in (12, 13) for batch, kind in kinds} | {"rejected/batch=8/batch-000000008.parquet"}  # fmt: skip
    works(there := folders(tmp_path))
    for name in sorted(names):
        *folder, batch, file = name.split("/")
        folder = [*folder, batch] if name.startswith("rejected") or "05-12" in name else folder  # which were moved before a kill
        (where(there) / "/".join(folder)).mkdir(parents=True, exist_ok=True)
        (where(there) / "/".join(folder) / file).touch()
    os.close(take(there))
    found = {str(path.relative_to(where(there))) for path in where(there).rglob("*.parquet")}
    assert found == {*names, "archive/batch-000000000.parquet"}, "which is none that was ever written"


def test_a_kill_between_its_two_names_is_no_reason_to_refuse_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as killed:
        killed.setattr("workers.api_requests.stream.folders._OWNER", "no/such/folder/\0")
        with pytest.raises(ValueError, match="null"):
            take(folders(tmp_path))
    assert (tmp_path / "state" / "name").exists()
    works(folders(tmp_path))


def test_one_that_works_keeps_others_out_of_its_state(tmp_path: Path) -> None:
    held = take(folders(tmp_path))
    with pytest.raises(WrongUse, match="another job works in this folder"):
        take(folders(tmp_path))
    os.close(held)
    os.close(take(folders(tmp_path)))


def test_a_file_system_without_locks_is_not_taken_for_another_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("workers.api_requests.stream.folders.fcntl.flock", none)
    with pytest.raises(WrongUse, match="it cannot be locked: No locks available"):
        take(folders(tmp_path))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(WrongUse, match=f"{tmp_path}/state: File exists: name folders that you may write to"):
        take(folders(tmp_path))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_an_output_that_takes_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Where the folder is there, it shows with the first file alone."""
    os.close(take(there := folders(tmp_path)))
    (where(there) / ".job").unlink()
    link = os.link

    def refused(source: Path, target: Path) -> None:
        if Path(target).parent == where(there):
            raise OSError(number, os.strerror(number), str(target))
        link(source, target)

    monkeypatch.setattr("workers.api_requests.durable.os.link", refused)
    with pytest.raises(WrongUse, match=f"{where(there)}/.job: {os.strerror(number)}: name folders that you may write to"):
        take(there)


def test_a_disk_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that fails there says "No space left on device", and not where."""
    there, real = {f"--{name}": tmp_path / name for name in ("state", "spool", "output")}, os.statvfs
    for place in list(there.values())[:2]:
        place.mkdir()
    assert obstacles(there) == ""
    full = os.statvfs_result((4096, 4096, 1000, 3, 3, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full if path == there["--state"] else real(path))
    words = f"; the disk of --state {tmp_path / 'state'} is full: make room there, and the job goes on where it was"
    assert obstacles(there) == words


def test_what_may_not_be_written_to_any_more_is_named(tmp_path: Path) -> None:
    """Of a file system that was mounted anew, Java says "Read-only file system", and no fix."""
    (output := tmp_path / "output").mkdir()
    try:
        with tmpfs(output, 1 << 22):
            assert obstacles({"--output": output, "--state": tmp_path}) == ""
            subprocess.run(["mount", "-o", "remount,ro", output], check=True)
            fix = "see to its rights and its mount, and the job goes on where it was"
            assert obstacles({"--output": output, "--state": tmp_path}) == f"; --output {output} may not be written to: {fix}"
    except ServerMissing as error:
        missing(str(error))


def test_a_file_system_that_does_not_answer_is_none_that_one_may_not_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalOutput, name: str) -> None:
        raise OSError("hdfs://host/requests: java.net.ConnectException: Connection refused")

    monkeypatch.setattr(LocalOutput, "make", refuse)
    with pytest.raises(WrongUse, match=r"^hdfs://host/requests: java.*refused: see whether it is up, or name folders that you"):
        take(folders(tmp_path))
