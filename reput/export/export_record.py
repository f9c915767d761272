"""The record of an export, ``_reput_export.json`` in its directory: the part of the log exported.

Readers of data directories skip names that begin with ``_``. The record is replaced after the
files are in their places. So files of a range beyond ``end_offset`` are the remains of an
interrupted export and are not part of the data.

===================  =========================================================================
field                meaning
===================  =========================================================================
format               1
store                the store's absolute path
file_format          parquet or jsonl; compression, columns, topics, exclude_system, from_time,
                     not_consumed_by: as the options (absent is null)
begin_offset         the offset at which the first export began
end_offset           the log has been exported up to here, and the next export begins here
messages             the number of messages in the directory
last_record          fingerprint of the last record before ``end_offset``, or null
===================  =========================================================================
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from store.errors import DamageError, StoreIOError, UnsupportedFormatError
from store.output.progress import Fingerprint

RECORD = "_reput_export.json"
_FORMAT = 1
_SIZE_MAX = 16 << 20  # bytes


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """The settings that all exports into one directory share. The time is epoch ms."""

    store: str
    file_format: str
    compression: str
    columns: tuple[str, ...]
    topics: tuple[str, ...]
    exclude_system: bool
    from_time: int | None
    not_consumed_by: str | None = None

    def difference_from(self, other: ExportSettings) -> str:
        """Return the first setting that differs with both values, "" if all are equal."""
        for field in fields(self):
            here, there = getattr(self, field.name), getattr(other, field.name)
            if here != there:
                return f"{field.name} is {_shown(there)} there, {_shown(here)} here"
        return ""


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """The part of a log that has been exported, and the settings."""

    settings: ExportSettings
    begin_offset: int
    end_offset: int
    messages: int
    last_record: Fingerprint | None


def encode_record(record: ExportRecord) -> bytes:
    """Encode a record as JSON."""
    values = {"format": _FORMAT, **asdict(record.settings), **asdict(record)}
    del values["settings"]
    return json.dumps(values, indent=1).encode() + b"\n"


def decode_record(data: bytes, path: Path) -> ExportRecord:
    """Decode a record. Raises DamageError, which names ``path``, and UnsupportedFormatError."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise DamageError(path, 0, "the record of the export is not JSON") from e
    if not isinstance(values, dict):
        raise DamageError(path, 0, "the record of the export is not a JSON object")
    take = _Values(values, path)
    version = take.integer("format")
    if version != _FORMAT:
        raise UnsupportedFormatError(
            f"{path} has format {version}; this release reads format {_FORMAT}"
        )
    from_time, group = values.get("from_time"), values.get("not_consumed_by")
    settings = ExportSettings(
        store=take.text("store"),
        file_format=take.text("file_format"),
        compression=take.text("compression"),
        columns=take.texts("columns"),
        topics=take.texts("topics"),
        exclude_system=take.flag("exclude_system"),
        from_time=None if from_time is None else take.integer("from_time"),
        not_consumed_by=None if group is None else take.text("not_consumed_by"),
    )
    begin, end = take.integer("begin_offset"), take.integer("end_offset")
    if not 0 <= begin <= end < 1 << 63:
        raise DamageError(path, 0, f"the record of the export has offsets {begin} to {end}")
    last = values.get("last_record")
    if last is not None:
        inner = _Values(last if isinstance(last, dict) else {}, path)
        last = Fingerprint(**{f.name: inner.integer(f.name) for f in fields(Fingerprint)})
    return ExportRecord(settings, begin, end, take.integer("messages"), last)


def read_record(directory: Path) -> ExportRecord | None:
    """Return the record of a directory, None if it has none.

    Raises DamageError, UnsupportedFormatError, StoreIOError.
    """
    path = directory / RECORD
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _SIZE_MAX:
            raise DamageError(path, 0, "the record of the export is not a regular, small file")
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as file:
            return decode_record(file.read(_SIZE_MAX), path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise StoreIOError("read", path, e) from e


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of a record. Each method raises DamageError if the type is wrong."""

    values: dict[str, Any]
    path: Path

    def integer(self, name: str) -> int:
        value = self.values.get(name)
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            raise self._wrong(name, "an integer")
        return value

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            raise self._wrong(name, "text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of texts")
        return tuple(value)

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def _wrong(self, name: str, expected: str) -> DamageError:
        return DamageError(self.path, 0, f"{name!r} in the record of the export is not {expected}")


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(value) or "all"
    return repr(value) if isinstance(value, str) else str(value).lower()
