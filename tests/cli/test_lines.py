"""Reading an input into lines: every line is met once, whatever the blocks, the compression or the damage."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.cli import lines as module
from framework.cli.lines import Numbered, Reading
from framework.errors import BadInput

TEXT = b"".join(b"line %d of a log\n" % n for n in range(5000))


def lines_of(one: Reading) -> list[Numbered]:
    return [line for together in one for line in together]


def reading(data: bytes) -> Reading:
    return Reading(io.BytesIO(data), "the input")


@given(
    parts=st.lists(st.text(alphabet="ab é", max_size=12).map(str.encode), max_size=20),
    last=st.text(alphabet="ab", max_size=5).map(str.encode),
    end=st.sampled_from([b"\n", b"\r\n"]),
    zipped=st.booleans(),
    block=st.integers(1, 40),
)
@settings(max_examples=100)
def test_every_line_is_met_once_whatever_the_blocks(
    parts: list[bytes], last: bytes, end: bytes, zipped: bool, block: int
) -> None:
    text = b"".join(part + end for part in parts) + last
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "_BLOCK", block)
        found = lines_of(reading(gzip.compress(text) if zipped else text))
    assert found == list(enumerate(parts + [last] * bool(last), 1))


def test_a_gzip_may_have_several_members_and_padding() -> None:
    data = gzip.compress(b"one\ntw") + gzip.compress(b"o\nthree\n") + b"\0" * 700
    one = reading(data)
    assert [line for _, line in lines_of(one)] == [b"one", b"two", b"three"]
    assert one.complaint == ""


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_half_a_gzip_gives_the_whole_lines_that_are_in_it(share: float) -> None:
    whole = gzip.compress(bytes(random.Random(1).choices(b"abcdefgh \n", k=300_000)))
    data = whole[: int(len(whole) * share)]
    text = zlib.decompressobj(wbits=31).decompress(data)
    one = reading(data)
    assert [line for _, line in lines_of(one)] == text.split(b"\n")[:-1]
    assert one.complaint == "the input ends in the middle of its gzip stream"
    assert one.unreadable == (0 if text.endswith(b"\n") else 1)
    assert one.lines == len(text.split(b"\n")[:-1]) + one.unreadable


def test_a_damaged_gzip_gives_what_comes_before_the_damage() -> None:
    data = bytearray(gzip.compress(TEXT * 20, 1))
    data[len(data) // 2] ^= 0xFF
    one = reading(bytes(data))
    found = [line for _, line in lines_of(one)]
    assert "is damaged near byte" in one.complaint
    assert 0 < len(found) < 100_000
    assert found[:10_000] == (TEXT * 20).split(b"\n")[:10_000]  # zlib notices a little late


def test_a_wrong_checksum_is_noticed() -> None:
    data = bytearray(gzip.compress(TEXT))
    data[-6] ^= 0xFF
    one = reading(bytes(data))
    assert len(lines_of(one)) == 5000
    assert "damaged" in one.complaint


def test_garbage_after_a_gzip_is_noticed() -> None:
    one = reading(gzip.compress(b"one\n") + b"garbage")
    assert [line for _, line in lines_of(one)] == [b"one"]
    assert "damaged" in one.complaint


@pytest.mark.parametrize("end", [b"\nshort\n", b""])
def test_a_line_without_end_is_skipped_without_being_held(end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 1_000_000)
    found = lines_of(reading(b"first\n" + b"x" * 5_000_000 + end))
    assert found == [(1, b"first"), (2, None)] + ([(3, b"short")] if end else [])


def test_text_in_any_encoding_without_zeros_is_text() -> None:
    assert lines_of(reading("grün\nçava".encode("latin-1"))) == [(1, b"gr\xfcn"), (2, b"\xe7ava")]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (random.Random(1).randbytes(100_000), "is binary, not lines of text"),
        (bytes(range(1, 256)), "is binary, not lines of text"),
        (b"\x7fELF\x02\x01\x01\x00", "is binary"),
        ("text".encode("utf-16"), "is binary"),
        (gzip.compress(b"\x00\x01\x02" * 100), "is binary"),
        (bz2.compress(TEXT), "is compressed with bzip2: publish its text, with `bzcat"),
        (lzma.compress(TEXT), "is compressed with xz"),
        (b"\x28\xb5\x2f\xfd whatever", "is compressed with zstd"),
        (b"PK\x03\x04 whatever", "is compressed with zip"),
    ],
    ids=["random", "control", "elf", "utf-16", "gzip of binary", "bzip2", "xz", "zstd", "zip"],
)
def test_an_input_that_is_no_text_is_refused_before_its_first_line(data: bytes, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        next(iter(reading(data)))


def test_an_empty_input_has_no_lines() -> None:
    assert lines_of(reading(b"")) == []
    assert lines_of(reading(gzip.compress(b""))) == []
