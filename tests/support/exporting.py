"""Exports in this process, without Spark, and their files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from reput.cli import run
from reput.export.options import ExportOptions
from reput.export.run import ExportResult, open_export
from tests.logs.build import Message, build_log, write_log
from tests.support.verify_stores import CONFIG, messages, write_store

CONF = "mappedFileSizeCommitLog=4096\n"
BEGIN = 1_700_000_000_000


def make_store(parent: Path, sent: Sequence[Message]) -> Path:
    """Write a store with these messages and its broker.conf."""
    store = write_store(parent, list(sent))
    (store / "broker.conf").write_text(CONF)
    return store


def grow(store: Path, count: int) -> None:
    """Write the log of such a store with `count` messages in all."""
    write_log(build_log(messages(count), CONFIG.mapped_file_size_commit_log), store / "commitlog")


def sent_to(*topics: str, count: int = 3) -> list[Message]:
    return [
        Message(topic, queue_offset=n, body=f"{topic} {n}".encode(), store_timestamp=BEGIN + n)
        for n in range(count)
        for topic in topics
    ]


def export(store: Path, to: Path, **options: Any) -> ExportResult:
    """Export without Spark."""
    with open_export(store, to, ExportOptions(**options)) as job:
        return job.run()


def files_of(to: Path) -> list[Path]:
    return sorted(path for path in to.rglob("part-*") if path.is_file())


def offsets_of(to: Path) -> list[int]:
    """Return the commit log offsets of all exported rows."""
    found: list[int] = []
    for path in files_of(to):
        found += pq.ParquetFile(path).read(["commit_log_offset"]).column(0).to_pylist()
    return sorted(found)


def names_in(to: Path) -> set[str]:
    return {path.name for path in to.iterdir()}


def reput_here(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run `reput` in this process; return its exit code, output and errors."""
    code = run([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return code, out, err
