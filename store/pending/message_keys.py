"""The keys of messages at given offsets of the log, read when they are shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store.arrow.batches import batch_schema, message_batches
from store.commitlog.commit_log import CommitLog
from store.commitlog.dispatch_request import COLUMN_TYPES, DispatchRequests
from store.config import StoreConfig
from store.io.mapped_file import MappedFile, intact
from store.kernels import message_columns as mk
from store.pending.deliveries import Longs

_COLUMNS = ("uniq_key", "keys")


def with_keys(rows: pa.Table, log: CommitLog, config: StoreConfig) -> pa.Table:
    """Return rows with the columns ``uniq_key`` and ``keys``, null if a message has none.

    Rows whose log file has expired are left out. Raises DamageError for a record that has changed,
    StoreIOError.
    """
    offsets = rows["commit_log_offset"].to_numpy()
    bases = offsets - offsets % log.file_size
    found = [pa.RecordBatch.from_pylist([], schema=batch_schema(_COLUMNS))]
    places = [np.empty(0, np.int64)]
    for base in np.unique(bases).tolist():
        file = log.find_pinned(base)
        if file is not None:
            at = np.flatnonzero(bases == base)
            with intact():
                requests = _requests(file, offsets[at])
            found += message_batches(
                requests, file.view(), base, _COLUMNS, config=config, path=file.path
            )
            places.append(at)
    order = np.concatenate(places)
    kept, texts = rows.take(pa.array(np.sort(order))), pa.Table.from_batches(found)
    texts = texts.take(pa.array(np.argsort(order)))
    for name in _COLUMNS:
        kept = kept.append_column(name, texts[name])
    return kept


def _requests(file: MappedFile, offsets: Longs) -> DispatchRequests:
    """Return the requests of records that a scan has found, as far as decoding needs them."""
    sizes = np.empty(len(offsets), np.int32)
    mk.gather_i32(file.view(), offsets - file.base, sizes)
    columns: dict[str, NDArray[Any]] = {
        name: np.zeros(len(offsets), kind) for name, kind in COLUMN_TYPES.items()
    }
    columns |= {"commit_log_offset": offsets, "size": sizes}
    return DispatchRequests(0, 0, [], np.empty(0, np.int32), **columns)
