"""The parts of a batch on their way from the tasks to the sink: packed, passed on, unpacked.

A row is a stretch of the log (some thousand records): its bounds, its queues, and each column of
``store.commitlog.dispatch_request`` packed into one binary value. So Spark moves a few large values
instead of millions of small ones. The schema is private to this project.

Through Spark, the columns of a range cross the JVM several times. A worker that sees the query's
spool directory writes the rows of a range to a file there instead, the row that it returns names
the file, and the sink maps it. A token file proves that the worker sees this directory: on a
cluster, the same path may be another directory.

The spool is in the query's checkpoint directory, so an orphaned worker cannot write to the spool of
the next query. A file appears complete or not at all; taking it removes its name.
"""

from __future__ import annotations

import errno
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from store.commitlog.dispatch_request import COLUMN_TYPES, DispatchRequests
from store.commitlog.scanner import Damage, LogRange, Stretch
from store.errors import StoreIOError
from store.io.disk import Disk
from store.io.listing import list_names

SPOOLED_BATCH_BYTES_MIN = 4 << 20  # of log; the columns of a smaller batch go through Spark
SPOOL_DIR = "spool"
_FILE_NAME = re.compile("[0-9]{20}-[0-9]{20}-[0-9a-f]{32}")
_TEMPORARY_NAME = re.compile(_FILE_NAME.pattern + r"\.[0-9]+\.tmp")
_FIELDS = {
    "begin_offset": (pa.int64(), "BIGINT"),
    "end_offset": (pa.int64(), "BIGINT"),
    "spooled": (pa.string(), "STRING"),
    "damage_path": (pa.string(), "STRING"),
    "damage_reason": (pa.string(), "STRING"),
    "damage_is_lost": (pa.bool_(), "BOOLEAN"),
    "topics": (pa.list_(pa.string()), "ARRAY<STRING>"),
    "queue_ids": (pa.binary(), "BINARY"),
    **dict.fromkeys(COLUMN_TYPES, (pa.binary(), "BINARY")),
}
_SCHEMA = pa.schema([(name, arrow) for name, (arrow, _) in _FIELDS.items()])
SQL_SCHEMA = ", ".join(f"{name} {sql}" for name, (_, sql) in _FIELDS.items())


def pack(stretch: Stretch) -> pa.RecordBatch:
    """Return a stretch as one row."""
    span = {"begin_offset": stretch.begin, "end_offset": stretch.end}
    if isinstance(stretch, Damage):
        return _row(
            **span,
            damage_path=stretch.path,
            damage_reason=stretch.reason,
            damage_is_lost=stretch.is_lost,
        )
    queue_ids = stretch.queue_ids.astype("<i4").tobytes()
    return _row(**span, topics=stretch.topics, queue_ids=queue_ids, **stretch.packed())


def _row(**values: Any) -> pa.RecordBatch:
    arrays = [pa.array([values.get(f.name)], f.type) for f in _SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def unpack(rows: Iterable[pa.RecordBatch]) -> list[Stretch]:
    """Return the stretches of batches of one row each; their columns are views of the rows."""
    stretches: list[Stretch] = []
    for row in rows:
        values = {name: row.column(name)[0] for name in row.schema.names}
        span = values["begin_offset"].as_py(), values["end_offset"].as_py()
        if values["damage_reason"].is_valid:
            damage = (values[f"damage_{name}"].as_py() for name in ("path", "reason", "is_lost"))
            stretches.append(Damage(*span, *damage))
            continue
        queues = values["topics"].as_py(), values["queue_ids"].as_buffer()
        packed = {name: values[name].as_buffer() for name in COLUMN_TYPES}
        stretches.append(DispatchRequests.unpack(span, queues, packed))
    return stretches


def parts_of(table: pa.Table, spool: Spool) -> Iterator[tuple[int, Callable[[], list[Stretch]]]]:
    """Yield the parts of a batch in log order: the end of each, and a function to read it.

    Each spool file is a part of its own. The function may raise StoreIOError.
    """
    inline: list[Stretch] = []
    for row in sorted(table.to_batches(max_chunksize=1), key=_span_of):
        name = row.column("spooled")[0].as_py()
        if name is None:
            inline += unpack([row])
            continue
        if inline:
            yield inline[-1].end, partial(list, inline)
            inline = []
        yield _span_of(row)[1], partial(spool.take, name)
    if inline:
        yield inline[-1].end, partial(list, inline)


def _span_of(row: pa.RecordBatch) -> tuple[int, int]:
    return row.column("begin_offset")[0].as_py(), row.column("end_offset")[0].as_py()


class Spool:
    """One spool directory, used by its query and its tasks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._disk = Disk(directory)

    def begin(self) -> str:
        """Create the directory, and return the name of its token. Raises StoreIOError."""
        token = f"token-{uuid.uuid4().hex}"
        self._disk.put(self.directory / token, [])
        return token

    def put(self, part: LogRange, rows: list[pa.RecordBatch], token: str) -> list[pa.RecordBatch]:
        """Write the rows of a range; return the row that names their file.

        Returns the rows if this process cannot use the spool: its directory has no such token, or
        is of another user. Raises StoreIOError.
        """
        if not (self.directory / token).is_file():
            return rows
        name = f"{part.begin:020d}-{part.end:020d}-{uuid.uuid4().hex}"  # a task may run twice
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, _SCHEMA) as writer:
            for row in rows:
                writer.write_batch(row)
        try:
            self._disk.put(self.directory / name, [memoryview(sink.getvalue())])
        except StoreIOError as e:
            if e.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                return rows
            raise
        return [_row(begin_offset=part.begin, end_offset=part.end, spooled=name)]

    def find(self, begin: int) -> str | None:
        """Return the name of a file whose range begins at an offset, None if there is none."""
        names = list_names(self.directory, _is_file_name)
        return next((name for name in names if name.startswith(f"{begin:020d}-")), None)

    def take(self, name: str) -> list[Stretch]:
        """Return the stretches of a file and remove it; they are views of its memory map.

        Raises StoreIOError.
        """
        path = self.directory / name
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
        except (OSError, pa.ArrowInvalid) as e:
            error = e if isinstance(e, OSError) else OSError(errno.EIO, str(e))
            raise StoreIOError("read", path, error) from e
        self._disk.remove(path)
        return unpack(reader.get_batch(n) for n in range(reader.num_record_batches))

    def clear(self) -> None:
        """Remove the files of tasks that ran twice, failed or were killed. Raises StoreIOError."""
        for name in list_names(self.directory, _is_left_by_task):
            self._disk.remove(self.directory / name)


def _is_file_name(name: str) -> bool:
    return _FILE_NAME.fullmatch(name) is not None


def _is_left_by_task(name: str) -> bool:
    return _is_file_name(name) or _TEMPORARY_NAME.fullmatch(name) is not None
