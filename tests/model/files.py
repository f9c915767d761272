"""The files a broker's dispatch appends to: ConsumeQueue, ConsumeQueueExt, IndexFile.

Each class mirrors a broker's in-memory object, one call a message, and yields whole files.

    ConsumeQueue unit   offset i64 | size i32 | tagsCode i64
    ConsumeQueueExt     size i16 | tagsCode i64 | storeTimestamp i64 | bitmap length i16
    IndexFile           begin/endTimestamp, begin/endPhyOffset i64 | hashSlotCount, indexCount i32
                        slots i32 … | entries: hash i32, offset i64, seconds i32, previous i32
"""

import struct

from tests.model.config import CQ_UNIT_SIZE, ModelConfig
from tests.model.record import Record, divide, to_signed

CQ_UNIT = struct.Struct(">qiq")
EXT_UNIT = struct.Struct(">hqqh")
INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_SLOT = struct.Struct(">i")
INDEX_ENTRY = struct.Struct(">iqii")

FILLER = CQ_UNIT.pack(0, 0x7FFFFFFF, 0)
EXT_END = b"\xff\xff"
EXT_END_SIZE = 4
EXT_ADDRESS_BASE = -(1 << 63)
PAGE_SIZE = 4096

REPEATED, GAP, RESTARTED = "repeated", "gap", "restarted"


class ConsumeQueue:
    """One queue's units, in files of `file_size` bytes, by the byte each file begins at."""

    def __init__(self, file_size: int) -> None:
        self.file_size = file_size
        self.files: dict[int, bytearray] = {}
        self.last_base = 0
        self.end = 0
        self.max_physic_offset = -1

    def append(self, unit: tuple[int, int, int], queue_offset: int) -> str | None:
        """Append (offset, size, tags code); return why it is not where `queue_offset` says.

        A unit the queue already has (by its end in the log) is left out and not reported.
        """
        offset, size, _ = unit
        if offset + size <= self.max_physic_offset:
            return None
        expected = queue_offset * CQ_UNIT_SIZE
        if not self.files:
            self.create_file(expected - expected % self.file_size)
            while queue_offset != 0 and self.end < expected:
                self.write(FILLER)
        elif self.end == self.last_base + self.file_size:
            # This happens before the checks below: a dropped unit can leave an empty file.
            self.create_file(self.end)
        if queue_offset != 0 and expected < self.end:
            return REPEATED
        found_at = self.end
        self.max_physic_offset = offset + size
        self.write(CQ_UNIT.pack(*unit))
        if expected == found_at:
            return None
        return GAP if expected > found_at else RESTARTED

    def create_file(self, base: int) -> None:
        """Add a zero-filled file; the next unit goes to its beginning."""
        self.files[base] = bytearray(self.file_size)
        self.last_base = self.end = base

    def write(self, unit: bytes) -> None:
        """Write one unit at the end."""
        at = self.end - self.last_base
        self.files[self.last_base][at : at + CQ_UNIT_SIZE] = unit
        self.end += CQ_UNIT_SIZE


class ConsumeQueueExt:
    """One queue's ext units; it knows neither dedupe nor queue offsets."""

    def __init__(self, file_size: int) -> None:
        self.file_size = file_size
        self.files: dict[int, bytearray] = {}
        self.end = 0

    def put(self, tags_code: int, store_timestamp: int) -> int:
        """Append a unit without bitmap and return the address that goes into the queue."""
        last = max(self.files, default=0)
        room = last + self.file_size - self.end - EXT_END_SIZE if self.files else -1
        if room < EXT_UNIT.size:
            if self.files:
                at = self.end - last
                self.files[last][at : at + len(EXT_END)] = EXT_END
                last += self.file_size
            self.files[last] = bytearray(self.file_size)
            self.end = last
        address = EXT_ADDRESS_BASE + self.end
        unit = EXT_UNIT.pack(EXT_UNIT.size, tags_code, store_timestamp, 0)
        at = self.end - last
        self.files[last][at : at + EXT_UNIT.size] = unit
        self.end += EXT_UNIT.size
        return address


class SparseContent:
    """A file's content of which only written pages are kept; the rest reads as zeros."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pages: dict[int, bytearray] = {}

    def write(self, at: int, data: bytes) -> None:
        """Write `data` at position `at`, which may cross pages."""
        for i, byte in enumerate(data, at):
            page = self.pages.setdefault(i // PAGE_SIZE, bytearray(PAGE_SIZE))
            page[i % PAGE_SIZE] = byte

    def read(self, at: int, size: int) -> bytes:
        """Return up to `size` bytes from position `at`."""
        size = min(size, self.size - at)
        first, last = at // PAGE_SIZE, (at + size - 1) // PAGE_SIZE
        zeros = bytes(PAGE_SIZE)
        pages = b"".join(self.pages.get(n, zeros) for n in range(first, last + 1))
        return pages[at - first * PAGE_SIZE :][:size]

    def __bytes__(self) -> bytes:
        """Return everything; for files of the default size that is 420 MB."""
        return self.read(0, self.size)


class IndexFile:
    """One index file: the header fields as a broker holds them in memory, slots and entries."""

    def __init__(self, config: ModelConfig, previous: "IndexFile | None") -> None:
        self.config = config
        self.begin_timestamp = self.end_timestamp = 0
        self.begin_phy_offset = self.end_phy_offset = 0
        self.hash_slot_count = 0
        self.index_count = 1
        self.slots: dict[int, int] = {}
        self.entries: list[tuple[int, int, int, int]] = []
        if previous and previous.end_phy_offset > 0:
            self.begin_phy_offset = self.end_phy_offset = previous.end_phy_offset
        if previous and previous.end_timestamp > 0:
            self.begin_timestamp = self.end_timestamp = previous.end_timestamp

    @property
    def is_full(self) -> bool:
        """Entry 0 is never used: a full file holds max_index_num - 1 entries."""
        return self.index_count >= self.config.max_index_num

    def put(self, key_hash: int, record: Record) -> None:
        """Append one entry for a key of `record`."""
        slot = key_hash % self.config.max_hash_slot_num
        previous = self.slots.get(slot, 0)
        seconds = self.seconds_since_begin(record.store_timestamp)
        self.entries.append((key_hash, record.commit_log_offset, seconds, previous))
        self.slots[slot] = self.index_count
        if self.index_count <= 1:
            self.begin_phy_offset = record.commit_log_offset
            self.begin_timestamp = record.store_timestamp
        if previous == 0 or self.config.version <= (4, 7, 0):
            self.hash_slot_count += 1
        self.index_count += 1
        self.end_phy_offset = record.commit_log_offset
        self.end_timestamp = record.store_timestamp

    def seconds_since_begin(self, store_timestamp: int) -> int:
        """Return an entry's time difference; in a rolled file's first entry it spans files."""
        if self.begin_timestamp <= 0:
            return 0
        difference = to_signed(store_timestamp - self.begin_timestamp, 64)
        return max(0, min(divide(difference, 1000), 0x7FFFFFFF))

    def content(self) -> SparseContent:
        """Lay the file out as it is after a clean shutdown."""
        slots_at = INDEX_HEADER.size
        entries_at = slots_at + INDEX_SLOT.size * self.config.max_hash_slot_num
        content = SparseContent(entries_at + INDEX_ENTRY.size * self.config.max_index_num)
        # Java parity: 4.x writes the count with the first entry only, 5.x once more at shutdown.
        is_count_written = self.index_count > 1 or self.config.version >= (5, 0, 0)
        header = INDEX_HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_phy_offset,
            self.end_phy_offset,
            self.hash_slot_count,
            self.index_count if is_count_written else 0,
        )
        content.write(0, header)
        for slot, number in self.slots.items():
            content.write(slots_at + INDEX_SLOT.size * slot, INDEX_SLOT.pack(number))
        for number, entry in enumerate(self.entries, 1):
            content.write(entries_at + INDEX_ENTRY.size * number, INDEX_ENTRY.pack(*entry))
        return content
