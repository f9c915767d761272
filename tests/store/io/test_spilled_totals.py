"""Totals by group, in memory and in the temporary database."""

import random
import sqlite3
import tracemalloc
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from store.errors import StoreIOError
from store.io import spilled_totals
from store.io.spilled_totals import GroupTotals

KEYS = ("a", "é" * 40, "nul\0in it", "", None)


@pytest.mark.parametrize("rows_max", [1 << 18, 7])
def test_the_totals_are_exact_and_sorted(monkeypatch: pytest.MonkeyPatch, rows_max: int) -> None:
    monkeypatch.setattr(spilled_totals, "_ROWS_MAX", rows_max)
    monkeypatch.setattr(spilled_totals, "_ROWS_AT_ONCE", 3)
    source, sums = random.Random(1), Counter[tuple[str | None, int]]()
    groups = GroupTotals(["text", "number"], {"size": "sum", "highest": "max"})
    for _ in range(20):
        keys = [(source.choice(KEYS), source.randrange(3)) for _ in range(9)]
        sizes = [source.randrange(1 << 40) for _ in keys]
        for key, size in zip(keys, sizes, strict=True):
            sums[key] += size
        texts, numbers = [text for text, _ in keys], [number for _, number in keys]
        groups.add(pa.table({"size": sizes, "text": texts, "number": numbers, "highest": numbers}))
    groups.sort("size DESC, text IS NULL, text, number")
    rows = list(groups.rows())
    assert groups.count == len(rows) == len(sums)
    assert {(r["text"], r["number"]): r["size"] for r in rows} == sums
    assert [r["size"] for r in rows] == sorted(sums.values(), reverse=True)
    assert all(r["highest"] == r["number"] for r in rows)
    assert list(groups.rows(2, 5)) == rows[2:7]
    assert list(groups.rows(len(rows) - 1, 5)) == rows[-1:]


def test_groups_beyond_the_limit_are_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled_totals, "_BYTES_MAX", 10_000)
    groups = GroupTotals(["text"], {"size": "sum"})
    for begin in range(0, 1000, 10):
        texts = [f"{n}{'x' * 100}" for n in range(begin, begin + 10)]
        groups.add(pa.table({"text": texts, "size": [1] * 10}))
        assert sum(part.nbytes for part in groups._parts) <= 10_000
    groups.sort("text")
    assert groups.count == 1000


def test_no_group_at_all() -> None:
    groups = GroupTotals(["text"], {"size": "sum"})
    groups.sort("text")
    assert (groups.count, list(groups.rows())) == (0, [])


def test_a_full_disk_is_an_error_that_names_the_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    groups = GroupTotals(["text"], {"size": "sum"})
    groups._database.execute("PRAGMA max_page_count=4")  # as if the disk had no more room
    groups.add(pa.table({"text": [str(n) * 1000 for n in range(100)], "size": [1] * 100}))
    with pytest.raises(StoreIOError, match=f"temporary files in {tmp_path}: .*full") as raised:
        groups.sort("text")
    assert isinstance(raised.value.__cause__, sqlite3.OperationalError)


def test_long_texts_are_read_few_at_a_time() -> None:
    """A character beyond the BMP makes Python take four bytes for each of a text."""
    groups = GroupTotals(["text"], {"size": "sum"})
    for begin in range(0, 1000, 100):
        texts = [f"\N{GRINNING FACE}{n:08d}" + "t" * 32_000 for n in range(begin, begin + 100)]
        groups.add(pa.table({"text": texts, "size": range(begin, begin + 100)}))
    groups.sort("size")
    tracemalloc.start()
    try:
        assert sum(row["size"] for row in groups.rows()) == sum(range(1000))
        assert tracemalloc.get_traced_memory()[1] < 48 << 20  # all texts take 128 MB
    finally:
        tracemalloc.stop()
