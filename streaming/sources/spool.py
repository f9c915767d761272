"""The spool of a query: files through which tasks pass columns to the sink, bypassing Spark.

Through Spark, the columns of a range cross the JVM several times. A worker that sees the query's
spool directory writes them to a file there instead, and the sink maps the file. A token file
proves that the worker sees this directory: on a cluster, the same path may be another directory.

The spool is in the query's checkpoint directory, so an orphaned worker cannot write to the spool of
the next query. A file appears complete or not at all; taking it removes its name.
"""

from __future__ import annotations

import errno
import re
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from store.errors import StoreIOError
from store.io.disk import Disk
from store.io.listing import list_names

SPOOLED_BATCH_BYTES_MIN = 4 << 20  # of log; the columns of a smaller batch go through Spark
SPOOL_DIR = "spool"
_FILE_NAME = re.compile("[0-9]{20}-[0-9]{20}-[0-9a-f]{32}")
_TEMPORARY_NAME = re.compile(_FILE_NAME.pattern + r"\.[0-9]+\.tmp")


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

    def has_token(self, token: str) -> bool:
        """Return whether the directory holds the query's token, and so is the query's own."""
        return (self.directory / token).is_file()

    def write(self, span: tuple[int, int], batches: Sequence[pa.RecordBatch]) -> str:
        """Write the columns that a task read from a range of the log; return the file's name.

        Raises StoreIOError.
        """
        begin, end = span
        name = f"{begin:020d}-{end:020d}-{uuid.uuid4().hex}"  # a task may run twice
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        self._disk.put(self.directory / name, [memoryview(sink.getvalue())])
        return name

    def find(self, begin: int) -> str | None:
        """Return the name of a file whose range begins at an offset, None if there is none."""
        names = list_names(self.directory, _is_file_name)
        return next((name for name in names if name.startswith(f"{begin:020d}-")), None)

    def take(self, name: str) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a file and remove it; the batches are views of its memory map.

        Raises StoreIOError.
        """
        path = self.directory / name
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
        except (OSError, pa.ArrowInvalid) as e:
            error = e if isinstance(e, OSError) else OSError(errno.EIO, str(e))
            raise StoreIOError("read", path, error) from e
        self._disk.remove(path)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)

    def clear(self) -> None:
        """Remove the files of tasks that ran twice, failed or were killed. Raises StoreIOError."""
        for name in list_names(self.directory, _is_left_by_task):
            self._disk.remove(self.directory / name)


def _is_file_name(name: str) -> bool:
    return _FILE_NAME.fullmatch(name) is not None


def _is_left_by_task(name: str) -> bool:
    return _is_file_name(name) or _TEMPORARY_NAME.fullmatch(name) is not None
