"""A commit log as a broker leaves it: appended to, cut by a power loss, and appended to again."""

from __future__ import annotations

import os
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from store.config import StoreConfig
from tests.logs.build import BLANK_SIZE_MIN, MAGIC_BLANK, Batch, Message, encode, encode_properties
from tests.logs.random_logs import Generator, Mix

FILE_SIZE = 8192  # holds any generated message or batch


@dataclass(frozen=True)
class Placed:
    """A record in the log."""

    begin: int
    end: int
    message: Message


class BrokerLog:
    """The records of the log, and the offset up to which the files on disk show them."""

    def __init__(self, store: Path, config: StoreConfig, random: Random, start: int = 0) -> None:
        self.records: list[Placed] = []
        self.start = start
        self.shown = self.common_end = start  # common: shared with the log before it was cut
        self._content = bytearray()
        self._directory = store / "commitlog"
        self._prop_crc = config.enabled_append_prop_crc
        mix = Mix(version=config.version, multi_dispatch=config.enable_multi_dispatch)
        self._generator = Generator(random, mix)
        self._written: dict[int, bytes] = {}
        self._directory.mkdir(parents=True)
        (store / "abort").touch()  # a broker is running, or has crashed

    @property
    def end(self) -> int:
        """The end of the last record."""
        return self.records[-1].end if self.records else self.start

    def grow(self, count: int) -> None:
        """Append random messages or batches; ``show`` makes them visible."""
        for _ in range(count):
            self.append(self._generator.draw())

    def append(self, item: Message | Batch) -> None:
        """Append a message or a batch, after a blank if the file has no room."""
        messages: Batch = [item] if isinstance(item, Message) else item
        size = sum(len(encode(m, 0, prop_crc=self._prop_crc)) for m in messages)
        left = FILE_SIZE - len(self._content) % FILE_SIZE
        if size + BLANK_SIZE_MIN > left:
            blank = struct.pack(">iI", left, MAGIC_BLANK)
            self._content += blank.ljust(left, b"\0")
        for message in messages:
            at = self.start + len(self._content)
            self._content += encode(message, at, prop_crc=self._prop_crc)
            self.records.append(Placed(at, self.start + len(self._content), message))

    def show(self, end: int, *, ahead: bool = False) -> None:
        """Write files with the log up to ``end`` and zeros after it.

        ``ahead`` adds an empty file after the last one.
        """
        self.shown = end
        known = bytes(self._content[: end - self.start])
        files = {
            self.start + at: known[at : at + FILE_SIZE].ljust(FILE_SIZE, b"\0")
            for at in range(0, max(len(known), 1), FILE_SIZE)
        }
        if ahead:
            files.setdefault(max(files) + FILE_SIZE, bytes(FILE_SIZE))
        for base in self._written.keys() - files.keys():
            self._path(base).unlink()
        for base, content in files.items():
            if self._written.get(base) != content:
                _write_in_place(self._path(base), content)
        self._written = files

    def whole_end(self, end: int) -> int:
        """Return ``end``, or the end of its record if only zeros of that record are cut off."""
        for record in self.records:
            if record.begin < end < record.end:
                rest = self._content[end - self.start : record.end - self.start]
                return end if any(rest) else record.end
        return end

    def surely_holds_a_record(self, end: int) -> bool:
        """Return whether a record before ``end`` is visible; one that ends in zero may not be."""
        whole = [r for r in self.records if r.end <= end]
        return len(whole) > 1 or any(self._content[r.end - self.start - 1] for r in whole)

    def cut(self) -> None:
        """Continue as a broker does that recovers the shown files after a crash.

        After a blank it continues only if it finds the next file; else it overwrites the blank.
        """
        end = self.shown
        torn = next((r for r in self.records if r.begin < end < r.end), None)
        self.records = [r for r in self.records if r.end <= end]
        self.common_end = self.end
        if torn is not None and self._passes(torn, end):
            self._content[end - self.start : torn.end - self.start] = bytes(torn.end - end)
            self.records.append(torn)
        self.shown = resume = self.end
        next_base = resume + FILE_SIZE - (resume - self.start) % FILE_SIZE
        if resume + BLANK_SIZE_MIN <= end and next_base in self._written:
            at = resume - self.start
            if self._content[at + 4 : at + 8] == struct.pack(">I", MAGIC_BLANK):
                resume = next_base
        del self._content[resume - self.start :]
        offsets: Counter[tuple[str | bytes, int]] = Counter()
        for record in self.records:
            message = record.message
            offsets[message.topic, message.queue_id] = message.queue_offset + 1
        self._generator.next_offsets = offsets

    def _passes(self, record: Placed, end: int) -> bool:
        """Return whether a broker accepts a record whose bytes from ``end`` on are zeros.

        Properties have no checksum. Some of them count as damage when cut: those are not tried.
        """
        properties = _encoded(record.message)
        is_harmless = not any(name in properties for name in (b"DELAY", b"INNER"))
        return is_harmless and not self._prop_crc and end >= record.end - len(properties)

    def copy_to(self, store: Path, config: StoreConfig) -> None:
        """Write the whole log elsewhere, plus one record, so that none is half-written."""
        other = BrokerLog(store, config, Random(0), self.start)
        other.records, other._content = list(self.records), self._content[:]
        other.append(Message(topic="sentinel", body=b"x"))
        other.show(other.end)

    def _path(self, base: int) -> Path:
        return self._directory / f"{base:020d}"


def _write_in_place(path: Path, content: bytes) -> None:
    """Write a whole file in place, keeping its inode, as a broker's mapping does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.pwrite(fd, content, 0)
    finally:
        os.close(fd)


def _encoded(message: Message) -> bytes:
    properties = message.properties
    return properties if isinstance(properties, bytes) else encode_properties(properties)
