"""Brokers that keep consume queues or committed offsets in RocksDB (5.2 and later).

Their commit log and index files are those of any broker. What is in RocksDB is never read: queues
are built from the log into an OUTPUT. RocksDB's files lie in ``consumequeue/`` itself, beside the
topics' directories of a broker that writes its queues twice, or in ``consumequeue_rocksdb/``.

====================================  ==========================================================
setting                               the queues as files
====================================  ==========================================================
``storeType=defaultRocksDB``          none
``rocksdbCQDoubleWriteEnable=true``   all (but since 5.5.0, see the next two)
``combineCQLoadingCQTypes``           none, unless ``default`` is among its types
``combineCQUseRocksdbForLmq=true``    all but those of light message queues
====================================  ==========================================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from store.errors import StoreIOError, UnsupportedFormatError
from store.java import parse_boolean
from store.layout import CONSUME_QUEUE_DIR

_CURRENT = "CURRENT"  # every RocksDB has this file
_FILE = re.compile(
    r"CURRENT|IDENTITY|LOCK|LOG(\.old\.[0-9]+)?|(MANIFEST|OPTIONS)-[0-9]+(\.dbtmp)?|[0-9]+\.(sst|log)"
)
_SEPARATE_DIR = "consumequeue_rocksdb"  # useSeparateStorePathForRocksdbCQ
_TYPES = "combineCQLoadingCQTypes"
_TWICE = "rocksdbCQDoubleWriteEnable"


def is_rocksdb(directory: Path) -> bool:
    """Return whether a directory holds a RocksDB, perhaps among other files."""
    return os.path.isfile(directory / _CURRENT)


def rocksdb_queues(store_root: Path, values: Mapping[str, str]) -> str:
    """Return why the queues in STORE are not all in files, "" if they are.

    ``values`` are the properties of its broker.conf. Java parity: ``StoreType``,
    ``CombineConsumeQueueStore``.
    """
    store_type = values.get("storeType", "").strip()
    if "rocksdb" in store_type.lower():
        return f"storeType={store_type}"
    is_written_twice = parse_boolean(values.get(_TWICE, ""))
    if is_written_twice:
        types = values.get(_TYPES, "default").strip()
        if "default" not in types.split(";"):
            return f"{_TYPES}={types}"
        if parse_boolean(values.get("combineCQUseRocksdbForLmq", "")):
            return "combineCQUseRocksdbForLmq=true"
        return ""
    for directory in (store_root / CONSUME_QUEUE_DIR, store_root / _SEPARATE_DIR):
        if is_rocksdb(directory):
            return f"{directory.name} is a RocksDB, and {_TWICE} is not true"
    return ""


def require_queue_files(store_root: Path, output: Path, reason: str) -> None:
    """Raise UnsupportedFormatError if the queues of ``output``, a broker's own, are in RocksDB.

    ``reason`` is that of ``rocksdb_queues`` for the store; the files of any other directory decide.
    """
    if not _is_same(store_root, output):
        reason = rocksdb_queues(output, {})
    if reason:
        raise UnsupportedFormatError(
            f"{output}: the consume queues are in RocksDB and not read ({reason}); build them from "
            "the log in a new OUTPUT: reput dispatch or reput rebuild with --output"
        )


def require_no_rocksdb(store_root: Path, output: Path, reason: str) -> None:
    """Raise as ``require_queue_files``, and for queues that a broker writes to RocksDB too.

    An OUTPUT is written, and the two copies of a broker's queues would no longer agree.
    """
    require_queue_files(store_root, output, reason)
    if is_rocksdb(output / CONSUME_QUEUE_DIR) or is_rocksdb(output / _SEPARATE_DIR):
        raise UnsupportedFormatError(
            f"{output}: the broker keeps its consume queues in RocksDB too ({_TWICE}=true), which "
            "is not written; give a new OUTPUT"
        )


def rocksdb_files(directory: Path) -> frozenset[str]:
    """Return the names of a RocksDB's files in ``consumequeue``, none if it holds no RocksDB.

    Raises StoreIOError.
    """
    if not is_rocksdb(directory):
        return frozenset()
    try:
        return frozenset(name for name in os.listdir(directory) if _FILE.fullmatch(name))
    except OSError as e:
        raise StoreIOError("list", directory, e) from e


def _is_same(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return first.absolute() == second.absolute()
