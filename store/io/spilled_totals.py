"""Totals by group, exact for any number of groups: what exceeds the memory limit is on disk.

Tables of partial totals are added up in memory. When their groups exceed ``_ROWS_MAX`` or
``_BYTES_MAX``, they are appended to a temporary SQLite database, which sorts and merges them with a
cache of ``_CACHE_KIB``. SQLite creates its files in the directory of ``SQLITE_TMPDIR`` or
``TMPDIR``, and removes their names at once.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from store.errors import StoreIOError

_ROWS_MAX = 1 << 17
_BYTES_MAX = 8 << 20
_CACHE_KIB = 8 << 10
_ROWS_AT_ONCE = 1 << 7  # a text of a key may take 128 KB
_SETTINGS = (f"cache_size=-{_CACHE_KIB}", "temp_store=FILE", "journal_mode=OFF", "synchronous=OFF")


class GroupTotals:
    """Totals by the columns ``keys``; ``totals`` maps further columns to ``sum`` or ``max``.

    Keys are texts, integers or null, totals are integers. After ``sort``, nothing can be added, and
    threads may share it. Raises StoreIOError where the temporary files cannot be written.
    """

    def __init__(self, keys: Sequence[str], totals: Mapping[str, str]) -> None:
        self._keys = list(keys)
        self._totals = dict(totals)
        self._parts: list[pa.Table] = []
        with _io_errors():
            self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            weakref.finalize(self, self._database.close)
            for setting in _SETTINGS:
                self._database.execute(f"PRAGMA {setting}")
            self._database.execute(f"CREATE TABLE part ({self._names()})")
        self.count = 0  # of groups, once sorted

    def add(self, table: pa.Table) -> None:
        """Add the totals of a table, which has all columns; a group may have several rows."""
        self._parts.append(table.select([*self._keys, *self._totals]))
        if self._is_beyond(_ROWS_MAX, _BYTES_MAX):
            self._parts = [self._merged()]
            if self._is_beyond(_ROWS_MAX // 2, _BYTES_MAX // 2):
                self._spill()

    def sort(self, order: str) -> None:
        """Merge all and sort the groups by an SQL expression of the columns."""
        self._spill()
        keys = ", ".join(map(_quoted, self._keys))
        totals = (
            f"{kind}({_quoted(name)}) AS {_quoted(name)}" for name, kind in self._totals.items()
        )
        with _io_errors():
            self._database.execute(
                f"CREATE TABLE answer AS SELECT {keys}, {', '.join(totals)} FROM part"
                f" GROUP BY {keys} ORDER BY {order}"
            )
            self._database.execute("DROP TABLE part")
            (self.count,) = self._database.execute("SELECT COUNT(*) FROM answer").fetchone()

    def rows(self, begin: int = 0, count: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the sorted groups from a position on."""
        names = [*self._keys, *self._totals]
        end = self.count if count is None else min(begin + count, self.count)
        for at in range(begin, end, _ROWS_AT_ONCE):
            with _io_errors():
                found = self._database.execute(
                    f"SELECT {self._names()} FROM answer WHERE rowid > ? AND rowid <= ?",
                    (at, min(at + _ROWS_AT_ONCE, end)),
                ).fetchall()
            yield from (dict(zip(names, row, strict=True)) for row in found)

    def _names(self) -> str:
        return ", ".join(map(_quoted, (*self._keys, *self._totals)))

    def _is_beyond(self, rows: int, size: int) -> bool:
        found_rows: int = sum(part.num_rows for part in self._parts)
        found_size: int = sum(part.nbytes for part in self._parts)
        return found_rows > rows or found_size > size

    def _merged(self) -> pa.Table:
        grouped = pa.concat_tables(self._parts).group_by(self._keys, use_threads=False)
        merged = grouped.aggregate([*self._totals.items()])
        names = [*self._keys, *(f"{name}_{kind}" for name, kind in self._totals.items())]
        return merged.select(names).rename_columns([*self._keys, *self._totals])

    def _spill(self) -> None:
        if not self._parts:
            return
        table = self._merged()
        self._parts = []
        insert = f"INSERT INTO part VALUES ({', '.join('?' * table.num_columns)})"
        with _io_errors():
            self._database.execute("BEGIN")
            for batch in table.to_batches(_ROWS_AT_ONCE):
                columns = (column.to_pylist() for column in batch.columns)
                self._database.executemany(insert, zip(*columns, strict=True))
            self._database.execute("COMMIT")


def _directory() -> Path:
    """Return the directory in which SQLite creates temporary files."""
    named = [os.environ.get("SQLITE_TMPDIR", ""), os.environ.get("TMPDIR", "")]
    places = [*filter(None, named), "/var/tmp", "/usr/tmp", "/tmp"]
    return Path(next((p for p in places if os.access(p, os.W_OK | os.X_OK)), "."))


def _quoted(name: str) -> str:
    return f'"{name}"'


@contextmanager
def _io_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as e:
        error = OSError(errno.EIO, str(e))
        raise StoreIOError("write temporary files in", _directory(), error) from e
