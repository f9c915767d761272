"""Directories that look like a RocksDB."""

from pathlib import Path

_FILES = ("CURRENT", "IDENTITY", "LOCK", "MANIFEST-000005", "OPTIONS-000007", "000010.sst")


def make_rocksdb(directory: Path) -> None:
    """Write files with the names of a RocksDB's."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        (directory / name).write_bytes(b"x")
