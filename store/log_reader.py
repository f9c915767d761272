"""Messages of the commit log by physical offset, for reads that do not walk it.

The log's end is known without a walk for all but the last file: a record is wholly there if it
ends at or below ``known_end``, or if a later file holds anything. Only otherwise is the end looked
for, by ``store.commit_log``, which is loaded then: a read that needs no walk compiles nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from store.config import StoreConfig
from store.errors import DamageError, LostDataError
from store.layout import BLANK_SIZE, PROPERTY_CRC, PROPERTY_CRC_SIZE
from store.mapped_file import MappedFile, MappedFileQueue
from store.owned_record import Owner, Said, decode_owned, owned_store_timestamp
from store.record import Message, decode_message, encode_property_crc

if TYPE_CHECKING:
    from store.commit_log import CommitLog

_LOG_HINT = "restore the file from a replica or a backup"
_CONF_HINT = "pass the broker.conf this log was written with (--broker-conf)"
_CRC_NAME = PROPERTY_CRC.encode()


class LogReader:
    """The files of one commit log, mapped when first looked at; for one thread at a time.

    ``known_end`` is a physical offset up to which the log is known to hold whole records.
    """

    def __init__(self, paths: Iterable[Path], config: StoreConfig, known_end: int = 0) -> None:
        self.config = config
        self.known_end = known_end
        self.file_size = config.mapped_file_size_commit_log
        self._splits_properties = config.splits_properties
        self._has_property_crc = config.enabled_append_prop_crc
        self._queue = MappedFileQueue(paths, self.file_size, follows_links=True)
        self._commit_log: CommitLog | None = None

    def refresh(self) -> None:
        """See files added or deleted since. Raises DamageError, StoreIOError."""
        self._queue.refresh_if_changed()

    def min_offset(self) -> int:
        """Return the base of the first file, -1 without files."""
        return self._queue.files[0].base if self._queue.files else -1

    def is_empty(self) -> bool:
        """Tell whether the log has no record at all."""
        return not any(_holds_something(file) for file in self._queue.files[:1])

    def max_offset(self) -> int:
        """Return the end of the last record there (after a blank: the next file's base).

        0 without files. Walks the last file that holds anything.
        """
        if self._commit_log is None:
            from store.commit_log import CommitLog  # noqa: PLC0415 - loads the kernels

            self._commit_log = CommitLog(self._queue.directories, self.config)
        else:
            self._commit_log.refresh()
        end = self._commit_log.max_offset()
        files = self._queue.files
        if files and end > files[-1].base + self.file_size:
            self._queue.refresh()  # the log went on in a new file a moment ago
        return end

    def roll_next_file(self, offset: int) -> int:
        """Return where the file after the one of ``offset`` begins."""
        return offset + self.file_size - offset % self.file_size

    def path_of(self, offset: int) -> Path:
        """Return the file that holds an offset, else the log's (first) directory."""
        file = self._queue.find(offset)
        return file.path if file is not None else self._queue.directories[0]

    def message(self, offset: int, size: int | None = None) -> Message:
        """Return the message whose record begins at ``offset`` and has that size.

        For a record that something else (a unit, an index entry) says is there: whatever is not
        as it says raises DamageError, a range without a file LostDataError.
        """
        message = decode_in_file(self._file_of(offset), offset, self.config)
        if size is not None and message.size != size:
            reason = f"the record has {message.size} bytes, its consume queue says {size}"
            raise DamageError(message.path, offset, reason)
        return message

    def owned_message(self, said: Said, owner: Owner) -> Message | None:
        """Return the message of a unit if its record is in all what the unit says.

        Else None: ``message`` tells why.
        """
        file = self._queue.checked(said.offset - said.offset % self.file_size)
        if file is None or file.length != self.file_size:
            return None
        at = said.offset - file.base
        record = file.map()[at : at + said.size]
        message = decode_owned(record, said, owner, (file.path, self._splits_properties))
        if message is not None and self._has_property_crc:
            _check_property_crc(record, said.offset, file.path)
        return message

    def owned_store_timestamp(self, said: Said, owner: Owner) -> int | None:
        """Return the store time of such a message, without a look at its body."""
        at = said.offset % self.file_size
        data = self._queue.map_at(said.offset - at)
        if data is None or len(data) != self.file_size:
            return None
        return owned_store_timestamp(data, at, said, owner)

    def look(self, offset: int) -> Message | None:
        """Return the message whose record begins at ``offset``, None if none begins there.

        Raises DamageError for a record that is damaged; to tell it from an offset inside a
        record, the chain of its file is walked.
        """
        if not 0 <= self.min_offset() <= offset:
            return None
        if self._queue.find(offset) is None and not self.is_within(offset + 1):
            return None
        file = self._file_of(offset)
        try:
            message = decode_in_file(file, offset, self.config)
        except DamageError:
            if self._begins_record(file, offset):
                raise
            return None
        return message if self.is_within(offset + message.size) else None

    def is_within(self, end: int) -> bool:
        """Tell whether a record that ends at ``end`` is wholly in the log."""
        if end <= self.known_end:
            return True
        for file in reversed(self._queue.files):
            if file.base < end:
                break
            if _holds_something(file):
                return True
        return end <= self.max_offset()

    def _file_of(self, offset: int) -> MappedFile:
        file = self._queue.checked(offset - offset % self.file_size)
        if file is None:
            begin = offset - offset % self.file_size
            raise LostDataError(
                self._queue.directories[0],
                begin,
                begin + self.file_size,
                reason="no file holds this part of the log",
                hint=_LOG_HINT,
            )
        if file.length != self.file_size:
            reason = f"the file has {file.length} bytes, the log's files have {self.file_size}"
            raise DamageError(file.path, file.base, reason, f"{_LOG_HINT}, or {_CONF_HINT}")
        return file

    def _begins_record(self, file: MappedFile, offset: int) -> bool:
        """Tell whether a record (no blank) should begin at ``offset``, where none can be decoded.

        Raises DamageError if the chain of records breaks before it.
        """
        from store.kernels import record as rk  # noqa: PLC0415 - loads the kernels
        from store.kernels.log_walk import walk  # noqa: PLC0415 - the same
        from store.scan import scan_rules  # noqa: PLC0415 - the same

        if not self.is_within(offset + 1):
            return False
        at = offset - file.base
        rules = scan_rules(self.config)._replace(check_crc=False, check_property_crc=False)
        no_cuts = (np.empty(0, np.int64), 0)
        end = walk(file.view(), (file.base, 0, at + 1), rules, False, no_cuts)
        if end.reason in (rk.OK, rk.BLANK):
            return bool(end.last == at)
        if end.at < at:
            raise DamageError(file.path, file.base + end.at, rk.REASONS[end.reason], _LOG_HINT)
        return True


def decode_in_file(file: MappedFile, offset: int, config: StoreConfig) -> Message:
    """Decode the record at a physical offset of a file; raises DamageError if not acceptable."""
    message, _ = decode_message(
        file.view().data,
        offset - file.base,
        offset=offset,
        path=file.path,
        splits_properties=config.splits_properties,
    )
    if config.enabled_append_prop_crc:
        _check_property_crc(message.record, offset, file.path)
    return message


def _check_property_crc(record: bytes, offset: int, path: Path) -> None:
    crc = record[-PROPERTY_CRC_SIZE:]
    if crc.startswith(_CRC_NAME) and crc != encode_property_crc(record[:-PROPERTY_CRC_SIZE]):
        raise DamageError(path, offset, "the record does not match its property CRC")


def _holds_something(file: MappedFile) -> bool:
    return file.length > 0 and any(file.map()[:BLANK_SIZE])
