"""One task of an export: writes one range of the log to files of its own.

A task does not depend on Spark. It writes to the export's staging directory, under names that no
other attempt uses, and returns a list of the files. The export job moves the files of the
successful attempts to their places.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from reput.export.not_consumed import NotConsumed
from store.arrow.batches import BodyLimits, message_batches
from store.arrow.json_lines import columns_of, json_lines
from store.arrow.schema import rows_of_topics
from store.commitlog.compression import BODY_BYTES_MAX
from store.commitlog.dispatch_request import DispatchRequests
from store.commitlog.scanner import Damage, LogRange, Scanner
from store.config import StoreConfig
from store.consumequeue.names import is_system_topic
from store.errors import StoreError
from store.io.disk import Disk
from store.io.mapped_file import map_file
from store.output.progress import LostRange

PARQUET, JSONL = "parquet", "jsonl"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # of a Hive partition whose value is NULL
NONE = "none"
SUFFIXES = {"gzip": ".gz", "zstd": ".zst"}  # of compressed JSON Lines
# What a path or a glob treats specially: as Spark's ExternalCatalogUtils, and the closing brace.
_SPECIAL = "\"#%'*/:=?\\{}[]^\x7f"
_ESCAPES = {ord(c): f"%{ord(c):02X}" for c in (*map(chr, range(32)), *_SPECIAL)}
_KEYS = ("topic", "store_timestamp_ms")  # the columns that determine the directory of a row
_LINE = "line"
_FLUSH_BYTES = 128 << 20  # of buffered columns or lines, uncompressed
_SIMILAR_MAX = 3
_DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)
_DAY_MIN, _DAY_MAX = (date.min - _EPOCH).days, (date.max - _EPOCH).days
_NO_DAY = _DAY_MAX + 1
_DAYS = _NO_DAY - _DAY_MIN + 1


@dataclass(frozen=True, slots=True)
class FileSpec:
    """The specification that all tasks share. Times are epoch ms, inclusive; None is no bound.

    ``columns`` are columns of the source (Parquet) or fields of ``message_json`` (JSON Lines).
    Without a ``staging`` directory nothing is written: the tasks only search for topics.
    """

    staging: Path | None
    config: StoreConfig
    file_format: str
    compression: str
    columns: tuple[str, ...]
    topics: tuple[str, ...] = ()
    exclude_system: bool = False
    from_time: int | None = None
    to_time: int | None = None
    skip_damage: bool = False
    max_body_bytes: int = BODY_BYTES_MAX  # of one decompressed body
    not_consumed: NotConsumed | None = None  # only messages that this group has not consumed

    def wants(self, topic: str) -> bool:
        """Return whether messages of a topic are exported."""
        if self.topics:
            return topic in self.topics
        return not (self.exclude_system and is_system_topic(topic))


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file in the staging directory; ``target`` is its final path below the directory."""

    name: str
    target: str
    size: int


@dataclass(slots=True)
class ExportedPart:
    """The result of a task; ``last`` is the offset of the range's last record, -1 without one.

    Of the requested topics, ``seen`` are those found in the range. For each of the others,
    ``similar`` has the topics of the range with a similar name.
    """

    files: list[StagedFile] = field(default_factory=list)
    messages: int = 0
    last: int = -1
    seen: set[str] = field(default_factory=set)
    lost: list[LostRange] = field(default_factory=list)  # damage that was skipped
    similar: dict[str, list[str]] = field(default_factory=dict)


def export_part(scanner: Scanner, part: LogRange, spec: FileSpec) -> ExportedPart:
    """Write the files of one range.

    Raises DamageError unless damage is skipped, UnsupportedFormatError, StoreIOError.
    """
    writer = _PartWriter(part, spec)
    for stretch in scanner.read(part, skip_damage=spec.skip_damage):
        if not isinstance(stretch, Damage):
            writer.add(stretch)
        elif spec.skip_damage:
            writer.skip(stretch)
        else:
            raise stretch.error()
    return writer.finish()


def similar_names(name: str, names: set[str]) -> list[str]:
    """Return the few names that are most similar to a name, ignoring case."""
    by_lower = {other.lower(): other for other in names}
    matches = difflib.get_close_matches(name.lower(), by_lower, _SIMILAR_MAX)
    return [by_lower[lower] for lower in matches]


class _PartWriter:
    """Buffers the rows of a range, and writes them by topic and day."""

    def __init__(self, part: LogRange, spec: FileSpec) -> None:
        self._part, self._spec = part, spec
        self._done = ExportedPart()
        self._topics: dict[str, int] = {}  # number by name
        self._seen: set[str] = set()
        self._disk = Disk()
        self._flushed = 0
        self._begin()

    def _begin(self) -> None:
        self._tables: list[pa.Table] = []
        self._partitions: list[NDArray[np.int64]] = []
        self._buffered_bytes = 0

    def add(self, stretch: DispatchRequests) -> None:
        """Add the messages of a stretch."""
        self._seen.update(stretch.topics)
        if len(stretch):
            self._done.last = int(stretch.commit_log_offset[-1])
        if self._spec.staging is None:
            return
        rows = self._rows(stretch)
        if not len(rows):
            return
        for batch in self._batches(stretch, rows):
            self._done.messages += batch.num_rows
            self._partitions.append(self._partition_of(batch))
            self._tables.append(self._output(batch))
            self._buffered_bytes += self._tables[-1].nbytes
            if self._buffered_bytes >= _FLUSH_BYTES:
                self._flush()

    def skip(self, damage: Damage) -> None:
        """Note a part that cannot be read."""
        self._done.lost.append(LostRange(damage.begin, damage.end, damage.path, damage.reason))

    def finish(self) -> ExportedPart:
        """Write the remaining rows; return the result."""
        self._flush()
        done = self._done
        done.seen = self._seen.intersection(self._spec.topics)
        done.similar = {
            t: similar_names(t, self._seen) for t in self._spec.topics if t not in done.seen
        }
        return done

    def _rows(self, stretch: DispatchRequests) -> NDArray[np.int64]:
        spec, times = self._spec, stretch.store_timestamp
        chosen = rows_of_topics(stretch, spec.wants)
        if spec.from_time is not None:
            chosen &= times >= spec.from_time
        if spec.to_time is not None:
            chosen &= times <= spec.to_time
        if spec.not_consumed is not None and chosen.any():
            chosen &= spec.not_consumed.rows(stretch)
        return np.flatnonzero(chosen)

    def _batches(
        self, stretch: DispatchRequests, rows: NDArray[np.int64]
    ) -> Iterator[pa.RecordBatch]:
        spec, part = self._spec, self._part
        columns = spec.columns if spec.file_format == PARQUET else columns_of(spec.columns)
        wanted = list(dict.fromkeys((*_KEYS, *columns)))
        view = map_file(Path(part.path))
        yield from message_batches(
            stretch,
            view,
            part.base,
            wanted,
            rows=rows,
            config=spec.config,
            path=part.path,
            limits=BodyLimits(spec.max_body_bytes, leaves_out=spec.skip_damage),
        )

    def _output(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the content of the files for a batch."""
        if self._spec.file_format == PARQUET:
            return pa.Table.from_batches([batch]).select(list(self._spec.columns))
        return pa.table({_LINE: json_lines(batch, self._spec.columns)})

    def _partition_of(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return for each row a number that stands for its topic and day."""
        topics = batch.column("topic").dictionary_encode()
        names = topics.dictionary.to_pylist()
        numbers = [self._topics.setdefault(name, len(self._topics)) for name in names]
        days = batch.column("store_timestamp_ms").to_numpy() // _DAY_MS
        days = np.where((days < _DAY_MIN) | (days > _DAY_MAX), _NO_DAY, days)
        found: NDArray[np.int64] = np.array(numbers, np.int64)[topics.indices.to_numpy()] * _DAYS
        return found + days - _DAY_MIN

    def _flush(self) -> None:
        """Write the buffered rows, one file for each topic and day."""
        if not self._tables:
            return
        table, partitions = pa.concat_tables(self._tables), np.concatenate(self._partitions)
        if partitions[0] != partitions[-1] or (partitions != partitions[0]).any():
            order = np.argsort(partitions, kind="stable")
            table, partitions = table.take(pa.array(order)), partitions[order]
        changes = np.flatnonzero(np.diff(partitions)) + 1
        bounds = [0, *changes.tolist(), len(partitions)]
        topics = list(self._topics)
        for begin, end in pairwise(bounds):
            topic, day = divmod(int(partitions[begin]), _DAYS)
            directory = f"{partition_directory('topic', topics[topic])}/{_day(day + _DAY_MIN)}"
            self._write(table.slice(begin, end - begin), directory)
        self._flushed += 1
        self._begin()

    def _write(self, rows: pa.Table, directory: str) -> None:
        part, spec, staging = self._part, self._spec, self._spec.staging
        if staging is None or not staging.is_dir():  # the export failed: do not create it again
            raise StoreError("the export that this task belongs to has ended")
        data = _parquet(rows, spec) if spec.file_format == PARQUET else _lines(rows, spec)
        name = uuid4().hex
        self._disk.put(staging / name, [memoryview(piece).cast("B") for piece in data])
        file = f"part-{part.begin:020d}-{part.end:020d}-{self._flushed:03d}{suffix(spec)}"
        self._done.files.append(
            StagedFile(name, f"{directory}/{file}", sum(piece.size for piece in data))
        )


def partition_directory(name: str, value: str) -> str:
    """Return the directory of a Hive partition: ``name=value``, escaped as Spark escapes it.

    A character that a path or a glob treats specially is ``%XX``. An empty value becomes
    ``NO_VALUE``, which Hive reads as NULL. A value that equals ``NO_VALUE`` has its first character
    escaped: Spark and DuckDB, which compare with the unescaped text, then read the value itself.
    """
    if value == NO_VALUE:
        return f"{name}=%{ord(value[0]):02X}{value[1:]}"
    return f"{name}={value.translate(_ESCAPES) or NO_VALUE}"


def suffix(spec: FileSpec) -> str:
    """Return the suffix of the files' names."""
    if spec.file_format == PARQUET:
        return ".parquet"
    return f".jsonl{SUFFIXES.get(spec.compression, '')}"


def _day(day: int) -> str:
    if day == _NO_DAY:
        return f"day={NO_VALUE}"
    return f"day={_EPOCH + timedelta(days=day)}"


def _parquet(rows: pa.Table, spec: FileSpec) -> list[pa.Buffer]:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression=spec.compression)
    return [sink.getvalue()]


def _lines(rows: pa.Table, spec: FileSpec) -> list[pa.Buffer]:
    texts = [_bytes_of(lines) for lines in rows.column(_LINE).chunks]
    if spec.compression == NONE:
        return texts
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, spec.compression) as out:
        out.writelines(texts)
    return [sink.getvalue()]


def _bytes_of(lines: pa.Array) -> pa.Buffer:
    """Return the concatenated lines as a view of Arrow's buffer."""
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int64)
    begin, end = ends[lines.offset], ends[lines.offset + len(lines)]
    return data[begin:end]
