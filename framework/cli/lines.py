"""Cuts an input, plain or gzip, into lines of bounded length, and counts what could not be read; publishes nothing."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedIOBase
from typing import TYPE_CHECKING

from framework.errors import BadInput

if TYPE_CHECKING:
    from zlib import _Decompress as Decompressor

#: Its number from 1, and its bytes without the end; None for one that is over LONGEST_LINE.
Numbered = tuple[int, bytes | None]

#: A longer line is counted and skipped without being held in memory; no nsqd is set up to take one.
LONGEST_LINE = 16 * 1024 * 1024

_BLOCK = 64 * 1024  # of a gzip, that is 64 MiB of text at most
_SNIFFED = 8192
_GZIP = b"\x1f\x8b"
#: First bytes -> the format's name and the command that unpacks it.
_OTHER_FORMATS = {
    b"BZh": ("bzip2", "bzcat"),
    b"\xfd7zXZ\x00": ("xz", "xzcat"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstdcat"),
    b"PK\x03\x04": ("zip", "unzip -p"),
}
_LONGEST_MAGIC = max(map(len, _OTHER_FORMATS))
_TEXT = bytes(range(32, 256)) + b"\t\n\r\f\x1b"


@dataclass(slots=True)
class Reading:
    """The lines of one input, and what is known of it so far."""

    stream: BufferedIOBase
    name: str
    """What messages about it call it."""
    lines: int = 0
    """Lines met so far, empty, oversized and unreadable ones included."""
    unreadable: int = 0
    """Lines that were cut off by the end of a broken gzip."""
    bytes_read: int = 0
    """Of the input as it lies there, compressed or not."""
    complaint: str = ""
    """Why the rest of the input could not be read; empty when all of it was."""

    def __iter__(self) -> Iterator[list[Numbered]]:
        """The lines, as many at a time as came in together, so that those of a slow pipe do not wait for more.

        Raises BadInput, before the first line, for an input that is no text.
        """
        unended = bytearray()
        skipping = False
        for block in self._blocks():
            *ends, rest = block.split(b"\n")
            together: list[Numbered] = []
            for end in ends:
                self.lines += 1
                together.append((self.lines, None if skipping else bytes(unended + end).removesuffix(b"\r")))
                unended.clear()
                skipping = False
            if together:
                yield together
            unended += rest
            if len(unended) > LONGEST_LINE:
                unended.clear()
                skipping = True
        if unended or skipping:
            self.lines += 1
            if self.complaint:  # half a line is not a line
                self.unreadable += 1
            else:
                yield [(self.lines, None if skipping else bytes(unended))]

    def _blocks(self) -> Iterator[bytes]:
        first = self._first_block()
        blocks = self._unzipped(first) if first.startswith(_GZIP) else self._plain(first)
        start = next(blocks, b"")
        self._refuse_binary(start)
        if start:
            yield start
        yield from blocks

    def _first_block(self) -> bytes:
        """Long enough to tell the format by."""
        first = b""
        while len(first) < _LONGEST_MAGIC and (more := self._read()):
            first += more
        return first

    def _read(self) -> bytes:
        block = self.stream.read1(_BLOCK)
        self.bytes_read += len(block)
        return block

    def _plain(self, block: bytes) -> Iterator[bytes]:
        while block:
            yield block
            block = self._read()

    def _unzipped(self, block: bytes) -> Iterator[bytes]:
        """As much as can be had of a gzip of one or more members; ``complaint`` says why it ended early."""
        while block:
            member = zlib.decompressobj(wbits=31)
            while block and not member.eof:
                before = member.copy()
                try:
                    text = member.decompress(block)
                except zlib.error as error:
                    self.complaint = f"{self.name} is damaged near byte {self.bytes_read}: {error}"
                    yield _before_damage(before, block)
                    return
                if text:
                    yield text
                block = member.unused_data if member.eof else self._read()
            if not member.eof:
                self.complaint = f"{self.name} ends in the middle of its gzip stream"
                return
            block = self._after_member(block)

    def _after_member(self, block: bytes) -> bytes:
        """The start of the next member; the zeros that tapes and some writers pad with are no member."""
        block = block.lstrip(b"\0")
        while not block and (block := self._read()):
            block = block.lstrip(b"\0")
        return block

    def _refuse_binary(self, start: bytes) -> None:
        for magic, (format_, command) in _OTHER_FORMATS.items():
            if start.startswith(magic):
                raise BadInput(
                    f"{self.name} is compressed with {format_}: publish its text, with `{command} FILE | workers publish TOPIC -`"
                )
        sample = start[:_SNIFFED]
        odd = len(sample.translate(None, _TEXT))
        if b"\0" in sample or odd * 20 > len(sample):
            raise BadInput(f"{self.name} is binary, not lines of text: nothing was published")


def _before_damage(member: Decompressor, block: bytes) -> bytes:
    """What can be had of a ``block`` that zlib refused whole."""
    text = []
    with suppress(zlib.error):
        for n in range(len(block)):
            text.append(member.decompress(block[n : n + 1]))
    return b"".join(text)
