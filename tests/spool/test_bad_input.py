"""URLs that cannot be meant, and segments that are none: one sentence each, that names the fix and no secret."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framework.errors import WrongUse
from framework.spool import Spool, SpoolError, segment
from framework.spool.storage import Remote
from tests.spool.rows import MakeBatch


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "is no folder that a spool can lie in"),
        ("a\0b", "is no folder that a spool can lie in"),
        ("~/spool", "'~/spool': ~ is a shell's word, and none has replaced it: give the whole path"),  # a folder named ~
        ("~ada/spool", "~ada is a shell's word"),
        ("$HOME/spool", r"\$HOME is a shell's word"),
        ("${SPOOLS}", r"\$\{SPOOLS\} is a shell's word"),
        (" s3://bucket/spool", "is a URL: give a path, or a URL that a spool can have"),  # it made a folder named " s3:"
        ("s3//bucket/spool", "'s3//bucket/spool' is no whole URL: .*lacks the colon; say one such as s3://bucket"),  # a folder s3
        (" WebHDFS//host/spool", "is no whole URL"),
        ("://bucket/spool", "'://bucket/spool' is no whole URL: what stands before its // is missing"),
        ("s3//AKIA:hush@bucket/spool", "'s3//bucket/spool' is no whole URL"),
        ("\ud800", r"'\\ud800' is no folder that a spool can lie in"),
        ("s3://bucket/\udcff", "is no folder that a spool can lie in"),
        ("s3:bucket/spool", "a bucket and a folder in it are needed"),
        ("s3://bucket/./spool", "a bucket and a folder in it are needed"),
        ("s3://bucket/a#1", "has no # and no control characters"),  # it was the spool of a#2 as well
        ("s3://bucket/a\nb", "has no # and no control characters"),
        ("s3://[bucket/spool", "is no URL: say one such as s3://bucket/spool"),
        ("webhdfs://[::1:9870/spool", "is no URL"),
        ("s3://AKIA:hu/sh@bucket/spool", "the URL of spool s3://bucket/spool holds credentials: set them in the environment"),
        ("s3://AKIA:hush/bucket/spool", "holds credentials"),
        ("s3://hush@bucket/spool", "holds credentials"),
        ("s3://bucket/spool?endpoint=http://AKIA:hush@host", "holds credentials"),
        ("abfss://container:hush@account.dfs.core.windows.net/spool", "holds credentials"),
        ("webhdfs://hush@namenode:9870/spool", "holds credentials"),
        ("abfss://box@account.dfs.core.windows.net", "'abfss://box@account.dfs.core.windows.net': a bucket and a folder"),
        ("hdfs://namenode:8020/spool", "a spool reaches HDFS by HTTP, so say webhdfs://namenode:9870/spool"),
        ("webhdfs://namenode/spool", "'namenode' is not host:port of a namenode's HTTP server, such as namenode:9870"),
        ("webhdfs://one:9870,two/spool", "'two' is not host:port"),
        ("webhdfs://namenode:9870/", "'webhdfs://namenode:9870/': a bucket and a folder in it are needed"),
        ("webhdfs://namenode:9870/spool?token=hush", "a URL has no option 'token', there is user"),
        ("webhdfs://namenode:9870/spool?token=", "a URL has no option 'token', there is user"),
        ("az://box/spool?region=x", "a URL has no option 'region', there are endpoint and account"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_and_shows_no_secret(
    tmp_path: Path, url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WrongUse, match=words) as refused:
        Spool(url)
    assert not {"hush", "hu/sh", "AKIA"} & {word for word in ("hush", "hu/sh", "AKIA") if word in str(refused.value)}
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("url", "place", "folder", "options"),
    [
        ("s3a://bucket//a/b/", "s3://bucket", "a/b", ()),
        ("S3://bucket/a?region=r&endpoint=http://minio", "s3://bucket", "a", (("endpoint", "http://minio"), ("region", "r"))),
        ("gs://bucket/a", "gs://bucket", "a", ()),
        ("az://box/a?account=b", "az://box", "a", (("account", "b"),)),
        ("abfs://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net", "a", ()),
        ("webhdfs://one:9870,two:9870/a?user=ada", "webhdfs://one:9870,two:9870", "a", (("user", "ada"),)),
        ("swebhdfs://one:9871/a", "swebhdfs://one:9871", "a", ()),
    ],
)
def test_a_url_says_where_a_spool_lies(url: str, place: str, folder: str, options: tuple[tuple[str, str], ...]) -> None:
    root = Spool(url).root
    assert isinstance(root, Remote)
    assert (root.storage.url, root.key, str(root)) == (place, folder, f"{place}/{folder}")
    assert root.storage.options == options  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", [5, None, b"/tmp/spool", True, ["/tmp/spool"]])
def test_what_is_no_path_at_all_is_refused_in_the_same_words(given: Any) -> None:
    with pytest.raises(
        WrongUse, match=f"^{re.escape(repr(given))} is no folder that a spool can lie in: give its path, or a URL"
    ):
        Spool(given)


@pytest.mark.parametrize("name", ["./~/spool", "a~", "a/~b", "$", "a$b", "$.d/spool", "./s3//a", "a//b", "//b", "s3/a", "\udcff"])
def test_a_folder_may_have_any_name_behind_a_path(name: str) -> None:
    assert str(Spool(name).root) == str(Path(name))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda whole: whole[: len(whole) // 2],
    "empty": lambda whole: b"",
    "zeros": lambda whole: bytes(len(whole)),
    "a footer that is none": lambda whole: whole[:-40] + bytes(30) + whole[-10:],
    "wrong offsets": lambda whole: whole.replace((5).to_bytes(4, "little") + (10).to_bytes(4, "little"), b"\xff" * 8),
    "ids that are no text": lambda whole: whole.replace(b"0000000000000001", b"\xff" * 16),
    "another schema": lambda whole: whole.replace(b"timestamp_ns", b"timestamp_us"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_segment_that_is_none_is_named_and_does_not_end_the_process(tmp_path: Path, batch: MakeBatch, damage: str) -> None:
    spool = Spool(tmp_path)
    spool.land(batch(0, 9, body=b"12345"))
    spool.close()
    (one,) = segment.listing(spool.folder)
    whole = one.path.read_bytes()
    broken = DAMAGES[damage](whole)
    assert broken != whole
    one.path.unlink()
    one.path.write_bytes(broken)
    for look in (segment.read, segment.keys):
        with pytest.raises(SpoolError, match=f"{one.path} is damaged: .*put a whole copy in its place, or remove it"):
            look(one.path)
    with pytest.raises(SpoolError, match="is damaged"):
        Spool(tmp_path).land(batch(9, 10))


def test_who_has_met_damage_holds_the_collector_no_longer(tmp_path: Path, batch: MakeBatch) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 9))
    path = Path(str(segment.listing(spool.folder)[0].path))
    whole = path.read_bytes()
    path.write_bytes(b"damaged")
    with pytest.raises(SpoolError, match="is damaged"):
        spool.open()
    path.write_bytes(whole)
    with Spool(tmp_path) as another:
        assert another.land(batch(0, 10)) == 1


NO_FILES: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,  # which was waited for, for ever
    "a folder": os.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a device": lambda path: path.symlink_to("/dev/null"),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_in_place_of_a_segment_is_named_and_not_waited_for(tmp_path: Path, batch: MakeBatch, kind: str) -> None:
    with Spool(tmp_path) as spool:
        spool.land(batch(0, 9))
    (one,) = segment.listing(spool.folder)
    path = Path(str(one.path))
    path.unlink()
    NO_FILES[kind](path)
    for look in (segment.read, segment.keys):
        with pytest.raises(SpoolError, match=f"{path} is damaged: it is .*put a whole copy in its place, or remove it"):
            look(path)
    with pytest.raises(SpoolError, match="is damaged"):
        Spool(tmp_path).land(batch(9, 10))
