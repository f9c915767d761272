"""The CommitLog, read-only: its files, its bounds and its messages (format notes §2.8).

The log is a chain of records in files of equal size. No file records where it ends: the end is
found by walking the chain through the last file that holds data. A message can be read without that
walk if its record ends at or below ``known_end``, or if a later file holds data.

Only the walk uses the kernels. They are imported on first use, so that a process that reads a few
messages does not load numba.
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from store.commitlog.message import COPIED_MAX
from store.commitlog.record import (
    Message,
    decode_message,
    encode_property_crc,
    inner_batch_error,
)
from store.commitlog.record_of_unit import Owner, RecordRef, decode_owned, owned_store_timestamp
from store.config import StoreConfig
from store.errors import RESTORE, DamageError, LostDataError, StoreIOError
from store.io.mapped_file import MappedFile, MappedFileQueue, intact
from store.layout import (
    ABORT_FILE,
    BLANK_SIZE,
    PROPERTY_CRC,
    PROPERTY_CRC_SIZE,
    SYS_INNER_BATCH,
)

if TYPE_CHECKING:
    from store.kernels.log_walk import WalkEnd

ReportProgress = Callable[[int, int], None]  # takes the bytes of a log that were read, and all

_CONF_HINT = "pass the broker.conf this log was written with (--broker-conf)"
_CRC_NAME = PROPERTY_CRC.encode()
_PAGE = 65536


class CommitLog:
    """The files of a commit log as of the last refresh, by physical offset. Not thread-safe.

    ``known_end`` is an offset up to which the log is known to consist of complete records.
    """

    def __init__(self, paths: Iterable[Path], config: StoreConfig) -> None:
        self.config = config
        self.file_size = config.mapped_file_size_commit_log
        self.known_end = 0
        self._splits_properties = config.splits_properties  # derived from the version
        self._queue = MappedFileQueue(paths, self.file_size, is_log=True)
        self._end: tuple[MappedFile | None, int] = (None, 0)  # last file, position walked up to

    # --- the files --------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Reload the list of files. Raises DamageError, StoreIOError."""
        self._queue.refresh()

    def refresh_if_changed(self) -> None:
        """Reload the list of files if a directory has changed. Raises DamageError, StoreIOError.

        Much cheaper than ``refresh``, but does not detect a file of which only the length changed.
        Reads of single messages check the length themselves.
        """
        self._queue.refresh_if_changed()

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directories that hold the files."""
        return self._queue.directories

    @property
    def files(self) -> list[MappedFile]:
        """The files in offset order."""
        return self._queue.files

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds ``offset``, or None."""
        return self._queue.find(offset)

    def find_pinned(self, offset: int) -> MappedFile | None:
        """Return the file that holds ``offset``, with its map; it may be deleted afterwards.

        None if there is none, or if it has been deleted. Raises StoreIOError.
        """
        file = self.find(offset)
        try:
            return file.pinned() if file is not None else None
        except StoreIOError as e:
            if e.errno != errno.ENOENT:
                raise
            return None

    def path_of(self, offset: int) -> Path:
        """Return the path of the file that holds ``offset``, else the first directory."""
        file = self.find(offset)
        return file.path if file is not None else self.directories[0]

    def next_base(self, offset: int) -> int | None:
        """Return the base of the first file that begins after ``offset``, or None."""
        return self._queue.next_base(offset)

    def roll_next_file(self, offset: int) -> int:
        """Return the base of the file after the one that holds ``offset``."""
        return offset + self.file_size - offset % self.file_size

    @intact()
    def last_file(self) -> MappedFile | None:
        """Return the last file that holds data, else the first file; None without files.

        A file of the wrong size counts: brokers never create one, so it was not preallocated.
        """
        for file in reversed(self.files):
            if file.length != self.file_size or _holds_data(file):
                return file
        return self.files[0] if self.files else None

    def missing_files(self) -> list[LostDataError | StoreIOError]:
        """Return the gaps between the files, and the entries that are no readable regular files."""
        problems = [file.problem for file in self.files if file.problem is not None]
        ends = [file.base + self.file_size for file in self.files]
        gaps = zip(ends, self.files[1:], strict=False)
        return [*problems, *(self._lost(end, file.base) for end, file in gaps if end < file.base)]

    def check_file(self, file: MappedFile) -> None:
        """Raise DamageError if a file does not have the configured size."""
        if file.length != self.file_size:
            reason = wrong_size(file, self.file_size)
            raise DamageError(file.path, file.base, reason, f"{RESTORE}, or {_CONF_HINT}")

    # --- the bounds -------------------------------------------------------------------------------

    @intact()
    def is_empty(self) -> bool:
        """Return whether the log holds no records."""
        return not any(_holds_data(file) for file in self.files[:1])

    def min_offset(self) -> int:
        """Return the base of the first file, -1 without files."""
        return self.files[0].base if self.files else -1

    @intact()
    def max_offset(self, boundary: int = 0) -> int:
        """Return the end of the last complete record, or the next file's base if a blank follows.

        0 without files. Walks the last file that holds data, from the end of the previous walk. The
        first walk begins at ``boundary``, the end of a record, if that file contains it.
        """
        from store.kernels import record as rk  # noqa: PLC0415 - loads the kernels

        last = self.last_file()
        if last is None:
            return 0
        if self._end[0] is not last:
            at = boundary - last.base
            self._end = (last, at if 0 <= at <= last.length else 0)
        end = self._walk(last, self._end[1], last.length, is_live=True)
        if end.last < 0 < self._end[1] != boundary - last.base:  # truncated before the last record
            end = self._walk(last, 0, last.length, is_live=True)
        if end.last >= 0:
            self._end = (last, end.last)  # rechecked by the next walk: it may be truncated by then
        return self.roll_next_file(last.base) if end.reason == rk.BLANK else last.base + end.at

    @intact()
    def likely_end(self) -> int:
        """Return the approximate end of the log, without a walk: after it, the last file is zero.

        0 without files. The log may end before it, or continue after zeros.
        """
        last = self.last_file()
        if last is None:
            return 0
        data = last.map()

        def page(number: int) -> bytes:
            return data[number * _PAGE : (number + 1) * _PAGE].rstrip(b"\0")

        pages = range(-(-len(data) // _PAGE))
        held = bisect_left(pages, True, key=lambda number: not page(number))
        return last.base + (held - 1) * _PAGE + len(page(held - 1)) if held else last.base

    def is_within(self, end: int) -> bool:
        """Return whether the log holds all of a record that ends at ``end``.

        If that takes a walk, the list of files is reloaded first.
        """
        if end <= self.known_end:
            return True
        for file in reversed(self.files):
            if file.base < end:
                break
            if _holds_data(file):
                return True
        self.refresh()
        return end <= self.max_offset()

    # --- messages ---------------------------------------------------------------------------------

    def message(self, offset: int, size: int | None = None) -> Message:
        """Return the message whose record begins at ``offset`` and has ``size`` bytes, if given.

        The record must be one that a unit, an index entry or progress refers to. Raises DamageError
        if it is invalid or has another size, LostDataError if no file holds it,
        UnsupportedFormatError if it is an inner batch.
        """
        message = decode_in_file(self.file_of(offset), offset, self.config)
        if size is not None and message.size != size:
            reason = f"the record has {message.size} bytes, its consume queue says {size}"
            raise DamageError(message.path, offset, reason)
        self._refuse_inner_batch(message)
        return message

    def owned_message(self, ref: RecordRef, owner: Owner) -> Message | None:
        """Return the message that a unit refers to if its record matches the unit.

        None means inconclusive: ``message`` decides, and raises if the record is damaged. So it
        does for a large record, which it does not copy.
        """
        if ref.size > COPIED_MAX:
            return None
        file = self._queue.checked(ref.offset - ref.offset % self.file_size)
        if file is None or file.length != self.file_size:
            return None
        at = ref.offset - file.base
        record = file.map()[at : at + ref.size]
        message = decode_owned(record, ref, owner, (file.path, self._splits_properties))
        if message is not None and self.config.enabled_append_prop_crc:
            _check_property_crc(record, ref.offset, file.path)
        return message

    def owned_store_timestamp(self, ref: RecordRef, owner: Owner) -> int | None:
        """Return the store time of the message that a unit refers to, without reading its body.

        None as in ``owned_message``.
        """
        at = ref.offset % self.file_size
        data = self._queue.map_at(ref.offset - at)
        if data is None or len(data) != self.file_size:
            return None
        return owned_store_timestamp(data, at, ref, owner)

    def find_message(self, offset: int) -> Message | None:
        """Return the message whose record begins at ``offset``, None if no record begins there.

        Raises DamageError for a damaged record, UnsupportedFormatError for an inner batch. The
        chain of its file is walked to distinguish damage from an offset inside a record.
        """
        if not 0 <= self.min_offset() <= offset:
            return None
        if self.find(offset) is None and not self.is_within(offset + 1):
            return None
        file = self.file_of(offset)
        try:
            message = decode_in_file(file, offset, self.config)
        except DamageError:
            if self._begins_record(file, offset):
                raise
            return None
        if not self.is_within(offset + message.size):
            return None
        self._refuse_inner_batch(message)
        return message

    def _refuse_inner_batch(self, message: Message) -> None:
        """Raise UnsupportedFormatError for a record that holds several messages, as a scan does."""
        if message.sys_flag & SYS_INNER_BATCH and self.config.checks_inner_batch:
            raise inner_batch_error(message.path, message.commit_log_offset)

    def file_of(self, offset: int) -> MappedFile:
        """Return the file of an offset. Raises LostDataError, DamageError for one of wrong size."""
        begin = offset - offset % self.file_size
        file = self._queue.checked(begin)
        if file is None:
            raise self._lost(begin, begin + self.file_size)
        self.check_file(file)
        return file

    def _lost(self, begin: int, end: int) -> LostDataError:
        reason = "no file holds this part of the log"
        return LostDataError(self.directories[0], begin, end, reason=reason, hint=RESTORE)

    def _begins_record(self, file: MappedFile, offset: int) -> bool:
        """Return whether an undecodable record, not a blank, begins at ``offset``.

        Raises DamageError if the chain of records breaks before it.
        """
        from store.kernels import record as rk  # noqa: PLC0415 - loads the kernels

        if not self.is_within(offset + 1):
            return False
        at = offset - file.base
        end = self._walk(file, 0, at + 1, is_live=False)
        if end.reason in (rk.OK, rk.BLANK):
            return bool(end.last == at)
        if end.at < at:
            raise DamageError(file.path, file.base + end.at, rk.REASONS[end.reason], RESTORE)
        return True

    def _walk(self, file: MappedFile, begin: int, end: int, *, is_live: bool) -> WalkEnd:
        """Walk the records of a file without their CRCs; check property CRCs at the live end.

        Raises DamageError if the file was truncated meanwhile.
        """
        from store.commitlog.scanner import scan_rules  # noqa: PLC0415 - loads the kernels
        from store.kernels.log_walk import NO_CUTS, walk  # noqa: PLC0415 - loads the kernels

        rules = scan_rules(self.config)
        checks_property_crc = is_live and rules.check_property_crc
        rules = rules._replace(check_crc=False, check_property_crc=checks_property_crc)
        walked: WalkEnd = walk(file.view(), (file.base, begin, end), rules, is_live, NO_CUTS)
        file.check_length()  # zeros after the end of a truncated file are no end of the log
        return walked


def was_closed_cleanly(store_root: Path) -> bool:
    """Return whether the broker closed its log cleanly: it deleted its ``abort``."""
    return not (store_root / ABORT_FILE).exists()


def wrong_size(file: MappedFile, file_size: int) -> str:
    """Return the reason for refusing a file that does not have the configured size."""
    return (
        f"the file has {file.length} bytes, the log's files have {file_size} "
        "(mappedFileSizeCommitLog)"
    )


def decode_in_file(file: MappedFile, offset: int, config: StoreConfig) -> Message:
    """Decode the record at a physical offset of a file. Raises DamageError if it is invalid.

    The caller reads within ``intact``.
    """
    data = memoryview(file.map())
    message, _ = decode_message(
        data,
        offset - file.base,
        offset=offset,
        path=file.path,
        splits_properties=config.splits_properties,
    )
    if config.enabled_append_prop_crc:
        at = offset - file.base
        _check_property_crc(data[at : at + message.size], offset, file.path)
    return message


def _check_property_crc(record: bytes | memoryview, offset: int, path: Path) -> None:
    crc = bytes(record[-PROPERTY_CRC_SIZE:])
    if crc.startswith(_CRC_NAME) and crc != encode_property_crc(record[:-PROPERTY_CRC_SIZE]):
        raise DamageError(path, offset, "the record does not match its property CRC")


def _holds_data(file: MappedFile) -> bool:
    """Return whether a file begins with anything but zeros.

    False if it was deleted since it was listed: a broker deletes the file that it preallocated.
    """
    try:
        return file.length > 0 and any(file.map()[:BLANK_SIZE])
    except StoreIOError as e:
        if e.errno == errno.ENOENT:
            return False
        raise
