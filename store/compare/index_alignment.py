"""The entries that an index may hold besides the keys of the log: older, doubled and stale ones.

A broker's index reaches back further than a log whose oldest files have expired. A restart indexes
the last record a second time, and records that the log lost in a crash stay indexed (format notes
§8.3, §10). Such entries are counted and inserted among those of the log, at their positions, so
that everything that depends on them (numbers, chains, slots, file ends) is compared byte for byte.
Any other entry is left for the comparison to report.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store import layout
from store.commitlog.dispatch_request import DispatchRequests
from store.compare.findings import ComparisonPolicy, MapCache
from store.config import StoreConfig
from store.index.file_parts import decode_header, entries_of, index_file_size

_CHUNK = 1 << 16
_MISMATCHES_MAX = 64  # beyond it, the index is unrelated, and is compared without alignment
_STALE_MAX = 1 << 20  # entries of one lost tail
_SECOND_MS = 1000


class Keys(NamedTuple):
    """Index keys in log order: the hash of each, and its record's offset and store time."""

    key_hash: NDArray[np.int32]
    offset: NDArray[np.int64]
    stamp: NDArray[np.int64]

    def slice(self, begin: int, end: int) -> Keys:
        """Return keys ``begin`` to ``end`` (exclusive)."""
        return Keys(self.key_hash[begin:end], self.offset[begin:end], self.stamp[begin:end])


class IndexAligner:
    """Walks the entries of index files in step with the log's dispatch requests."""

    def __init__(
        self,
        files: list[Path],
        config: StoreConfig,
        policy: ComparisonPolicy,
        views: MapCache,
    ) -> None:
        self._entries = _Entries(files, config, views)
        self._policy = policy
        self._counts = views.findings.counts
        self._at = 0  # entries consumed so far
        self._mismatches = 0
        self._last = _no_keys()  # the keys of the last record that had any

    def older(self) -> Iterator[DispatchRequests]:
        """Yield requests for the leading entries, which are below the log's minimum."""
        while self._policy.is_aged:
            found = self._entries.read(self._at, _CHUNK)
            count = _leading(found.offset < self._policy.begin)
            if count:
                yield _requests_of(found.slice(0, count))
            self._at += count
            self._counts.older_entries += count
            if count < _CHUNK:
                return

    def align(self, requests: DispatchRequests) -> Iterator[DispatchRequests]:
        """Yield the requests, each preceded by the doubled and stale entries before its own."""
        keys, rows = _keys_of(requests)
        at, yielded = 0, 0
        while at < len(rows) and self._mismatches < _MISMATCHES_MAX:
            at += self._match(keys.slice(at, len(rows)))
            if at == len(rows) or not len(self._entries.read(self._at, 1).offset):
                break
            first = int(np.searchsorted(rows, rows[at]))
            doubled = self._doubled(keys, rows, (first, at))
            self._counts.doubled_entries += len(doubled.offset)
            extra = doubled if len(doubled.offset) else self._overwritten(keys, (first, at))
            if len(extra.offset):
                row = int(rows[at])
                if row > yielded:
                    yield requests.slice(yielded, row)
                yielded, at = row, first
                yield _requests_of(extra)
            else:
                self._mismatches += 1
                self._at += 1
                at += 1
        if len(rows):
            self._last = keys.slice(int(np.searchsorted(rows, rows[-1])), len(rows))
        yield requests.slice(yielded, len(requests)) if yielded else requests

    def rest(self, end: int) -> Iterator[DispatchRequests]:
        """Yield requests for the entries after the log's last one: doubled, or stale.

        A stale entry here is at or beyond ``end``: of a record that the log lost, or that was not
        yet in it.
        """
        while self._policy.by_broker and self._starts(self._last):
            self._at += len(self._last.offset)
            self._counts.doubled_entries += len(self._last.offset)
            yield _requests_of(self._last)
        while self._policy.may_be_ahead:
            found = self._entries.read(self._at, _CHUNK)
            count = _leading(found.offset >= end)
            if count:
                yield _requests_of(found.slice(0, count))
            self._at += count
            self._counts.stale_entries += count
            if count < _CHUNK:
                return

    def _match(self, keys: Keys) -> int:
        """Consume the leading entries that equal these keys; return their number."""
        matched = 0
        while matched < len(keys.offset):
            chunk = keys.slice(matched, min(matched + _CHUNK, len(keys.offset)))
            found = self._entries.read(self._at, len(chunk.offset))
            count = _leading(_same(found, chunk.slice(0, len(found.offset))))
            self._at += count
            matched += count
            if count < len(chunk.offset):
                break
        return matched

    def _doubled(self, keys: Keys, rows: NDArray[np.int64], span: tuple[int, int]) -> Keys:
        """Return the keys that are indexed twice before entry ``_at``, none if it is no double.

        ``span`` = (the first key of the current record, its key that does not match). If keys of
        the record have already matched, the record starts over; else the previous one is repeated.
        """
        first, at = span
        if not self._policy.by_broker:
            return _no_keys()
        if at > first:
            starts_over = self._starts(keys.slice(first, at + 1))
            return keys.slice(first, at) if starts_over else _no_keys()
        previous = self._last
        if first:
            begin = int(np.searchsorted(rows, rows[first - 1]))
            previous = keys.slice(begin, first)
        count = len(previous.offset)
        repeats = 0
        while self._starts(previous, repeats * count):
            repeats += 1
        if not repeats or not self._starts(keys.slice(at, at + 1), repeats * count):
            return _no_keys()
        self._at += count
        return previous

    def _overwritten(self, keys: Keys, span: tuple[int, int]) -> Keys:
        """Return the stale entries of records that others have overwritten, none if there are none.

        ``span`` as in ``_doubled``. A broker that loses a torn tail stores other messages at the
        same offsets, but its index keeps the entries of the lost ones: offsets ascend from the cut,
        fall back to it, and the entries of the log follow. Keys of the log that equal stale entries
        by chance have matched too early; their second occurrence is the one that counts.
        """
        first, at = span
        if not self._policy.by_broker:
            return _no_keys()
        known = _joined([self._last, keys.slice(0, at + 1)])
        record = len(self._last.offset) + first  # the number of the record's first key in ``known``
        found = self._entries.read(self._at, _STALE_MAX)
        falls = found.offset[1:] < found.offset[:-1]
        falls |= _same(found, keys.slice(first, first + 1))[1:]
        falls &= found.offset[1:] <= keys.offset[at]
        for fall in (np.flatnonzero(falls)[:_MISMATCHES_MAX] + 1).tolist():
            resumed = int(np.searchsorted(known.offset, found.offset[fall]))
            before_cut = int(known.offset[resumed - 1]) if resumed else -1
            is_stale = found.offset[:fall].min() > before_cut
            if is_stale and self._starts(known.slice(resumed, len(known.offset)), fall):
                begin = self._at - (at - first)
                self._at += fall + record - resumed
                self._counts.stale_entries += self._at - begin
                return self._entries.read(begin, self._at - begin)
        return _no_keys()

    def _starts(self, keys: Keys, skip: int = 0) -> bool:
        """Return whether these keys, at least one, equal the entries after the next ``skip``."""
        count = len(keys.offset)
        found = self._entries.read(self._at + skip, count)
        return 0 < len(found.offset) == count and bool(_same(found, keys).all())


class _Entries:
    """The entries of index files as one sequence, up to the counts in their headers."""

    def __init__(self, files: list[Path], config: StoreConfig, views: MapCache) -> None:
        self._files = files
        self._config = config
        self._views = views
        self._size = index_file_size(config)
        counts = [self._count(path) for path in files]
        self._ends = list(accumulate(counts))

    def read(self, begin: int, count: int) -> Keys:
        """Return up to ``count`` entries from number ``begin`` on, across files."""
        parts = []
        number = bisect_right(self._ends, begin)
        while count > 0 and number < len(self._files):
            start = self._ends[number - 1] if number else 0
            part = self._read_file(number, begin - start, min(count, self._ends[number] - begin))
            parts.append(part)
            begin, count = begin + len(part.offset), count - len(part.offset)
            number += 1
        return _joined(parts)

    def _read_file(self, number: int, begin: int, count: int) -> Keys:
        """Read entries of one file.

        Times are known to the second, those of the file's first and last entry exactly.
        """
        view = self._views.get(self._files[number], self._size)
        if view is None or count == 0:
            return _no_keys()
        raw, header = entries_of(view, self._config)[begin : begin + count], decode_header(view)
        seconds = raw["time_diff_seconds"].astype(np.int64)
        stamp = header.begin_timestamp + seconds * _SECOND_MS
        if begin == 0:
            stamp[0] = header.begin_timestamp
        if begin + count == self._count(self._files[number]):
            stamp[-1] = header.end_timestamp
        return Keys(raw["key_hash"].astype(np.int32), raw["phy_offset"].astype(np.int64), stamp)

    def _count(self, path: Path) -> int:
        view = self._views.get(path, self._size)
        return 0 if view is None else len(entries_of(view, self._config))


def _keys_of(requests: DispatchRequests) -> tuple[Keys, NDArray[np.int64]]:
    """Return the keys that an index stores for requests, and the row of each."""
    rows = np.repeat(np.arange(len(requests)), np.diff(requests.key_end, prepend=0))
    kept = requests.transaction[rows] != layout.SYS_ROLLBACK
    rows = rows[kept]
    offset, stamp = requests.commit_log_offset[rows], requests.store_timestamp[rows]
    return Keys(requests.key_hash[kept], offset, stamp), rows


def _requests_of(keys: Keys) -> DispatchRequests:
    """Return requests with these keys, one key per record; their other columns are unused."""
    return DispatchRequests.of(
        (0, 0),
        commit_log_offset=keys.offset,
        store_timestamp=keys.stamp,
        key_end=np.arange(1, len(keys.offset) + 1, dtype=np.int32),
        key_hash=keys.key_hash,
    )


def _same(a: Keys, b: Keys) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (a.key_hash == b.key_hash) & (a.offset == b.offset)
    return same


def _leading(flags: NDArray[np.bool_]) -> int:
    """Count the leading true values."""
    return len(flags) if flags.all() else int(np.argmin(flags))


def _joined(parts: list[Keys]) -> Keys:
    return Keys(*map(np.concatenate, zip(*parts, strict=True))) if parts else _no_keys()


def _no_keys() -> Keys:
    return Keys(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
