"""The demo's parts: the input that it looks at, the folder that it wipes, the processes that it ends."""

from __future__ import annotations

import gzip
import os
import signal
import sys
from pathlib import Path

import pytest

from framework import WrongUse
from framework.testing.processes import left_after
from framework.testing.servers import ServerMissing
from tests.disks import tmpfs
from workers.api_requests.collect.check_input import check_input
from workers.api_requests.demo import folder
from workers.api_requests.processes import Child, ChildDied, Children

LINE = b'10.0.0.1 - - [12/May/2024:06:07:08 +0000] "GET / HTTP/1.1" 200 1\n'


class TestTheInput:
    @pytest.mark.parametrize(
        "content",
        [LINE, LINE.replace(b"\n", b"\r\n"), gzip.compress(LINE), gzip.compress(LINE * 9999)[:900], "é".encode() * 9, b"\n\n"],
        ids=["plain", "Windows", "gzip", "half a gzip", "UTF-8", "blank lines"],
    )
    def test_that_may_be_a_log_is_taken(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "log").write_bytes(content)
        check_input(tmp_path / "log")

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "nothing in it"),
            (b"\x89PNG\r\n\x1a\n" + bytes(99), "binary"),
            (gzip.compress(os.urandom(9999)), "binary"),
            (gzip.compress(b"", mtime=0), "nothing in it"),
            (b"\x1f\x8b\x08garbage", "nothing in it"),
            (LINE.decode().encode("utf-16"), "binary"),
        ],
        ids=["empty", "a picture", "a gzip of noise", "a gzip of nothing", "no gzip", "UTF-16"],
    )
    def test_that_cannot_be_a_log_is_refused(self, tmp_path: Path, content: bytes, words: str) -> None:
        (tmp_path / "log").write_bytes(content)
        with pytest.raises(WrongUse, match=words):
            check_input(tmp_path / "log")

    @pytest.mark.timeout(20)
    def test_that_can_be_read_only_once_is_refused(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for name in (tmp_path / "pipe", Path("/dev/zero")):
            with pytest.raises(WrongUse, match="a pipe or a device"):
                check_input(name)

    def test_that_is_a_folder_or_missing_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(WrongUse, match="is a folder"):
            check_input(tmp_path)
        with pytest.raises(WrongUse, match="No such file"):
            check_input(tmp_path / "none")


class TestTheFolder:
    def test_of_an_earlier_demo_is_emptied(self, tmp_path: Path) -> None:
        os.close(folder.begin(tmp_path / "demo"))
        (tmp_path / "demo" / "archive").mkdir()
        (tmp_path / "demo" / "archive" / "x.parquet").touch()
        (tmp_path / "demo" / "summary.json").touch()
        os.close(folder.begin(tmp_path / "demo"))
        assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == [".api-requests-demo", "work"]

    @pytest.mark.parametrize("made", [["thesis.tex"], ["archive"], [".api-requests-demo", "thesis.tex"]])
    def test_with_somebodys_files_is_refused_and_left_alone(self, tmp_path: Path, made: list[str]) -> None:
        for name in made:
            (tmp_path / name).touch()
        with pytest.raises(WrongUse, match="holds files that no demo made"):
            folder.begin(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(made)

    def test_that_another_demo_uses_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder, "_PATIENCE", 0.2)
        held = folder.begin(tmp_path / "demo")
        (tmp_path / "demo" / "summary.json").touch()
        with pytest.raises(WrongUse, match="another demo"):
            folder.begin(tmp_path / "demo")
        assert (tmp_path / "demo" / "summary.json").exists()
        os.close(held)

    def test_in_which_a_process_of_a_killed_demo_still_works_is_waited_for(self, tmp_path: Path) -> None:
        held = folder.begin(tmp_path / "demo")
        late = tmp_path / "demo" / "archive"
        left = Child(
            "left",
            [sys.executable, "-c", f"import os, time; time.sleep(1); os.mkdir({str(late)!r})"],
            tmp_path / "log",
            keeps=[held],
        )
        os.close(held)  # as a kill -9 does
        os.close(folder.begin(tmp_path / "demo"))
        assert left.process.wait() == 0
        assert not late.exists()

    def test_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(WrongUse, match="is not a folder"):
            folder.begin(tmp_path / "file")


def sleeper(tmp_path: Path, code: str = "import time; print('up', flush=True); time.sleep(60)", name: str = "sleeper") -> Child:
    return Child(name, [sys.executable, "-c", code], tmp_path / f"{name}.log")


class TestTheChildren:
    def test_one_that_dies_is_told_with_its_last_words(self, tmp_path: Path) -> None:
        children = Children(lambda: None)
        children.start(sleeper(tmp_path, "import sys; print('no disk'); sys.exit(7)"))
        with pytest.raises(ChildDied, match="sleeper ended with code 7: no disk"):
            children.wait(lambda: False, within=10)

    def test_one_whose_disk_was_full_could_say_nothing(self, tmp_path: Path) -> None:
        try:
            with tmpfs(tmp_path / "full", 4096):
                (tmp_path / "full" / "fill").write_bytes(bytes(4096))
                child = sleeper(tmp_path / "full", "import sys; print('lost'); sys.exit(7)")
                child.process.wait()
                assert child.last_words() == "it said nothing, for the disk is full"
        except ServerMissing as missing:
            pytest.skip(str(missing))

    def test_all_are_gone_at_the_end_also_those_that_do_not_listen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("workers.api_requests.processes.STOP_SECONDS", 0.5)
        deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
        children = Children(lambda: None)
        both = [children.start(sleeper(tmp_path)), children.start(sleeper(tmp_path, deaf, "deaf"))]
        assert children.wait(lambda: all(child.said() for child in both), within=10)
        children.end_all()
        assert [child.code for child in both] == [-signal.SIGTERM, -signal.SIGKILL]

    def test_grandchildren_are_gone_too_whatever_their_group(self, tmp_path: Path) -> None:
        code = (
            "import subprocess, time; p = subprocess.Popen(['sleep', '60'], start_new_session=True); "
            "print(p.pid, flush=True); time.sleep(60)"
        )
        children = Children(lambda: None)
        child = children.start(sleeper(tmp_path, code))
        assert children.wait(lambda: bool(child.said()), within=10)
        children.end_all()
        assert left_after([int(child.said()[0])], 5) == []
