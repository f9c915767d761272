"""One index file: the entries of a chain; a bad chain is damage and never a hang."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from store import java
from store.config import StoreConfig
from store.errors import DamageError
from store.index.file import IndexBound, IndexFile, index_key_hash, list_index_files
from store.layout import INDEX_ENTRY, INDEX_HEADER, index_entry_at, index_file_size, index_slot_at

CONFIG = replace(StoreConfig(), max_hash_slot_num=3, max_index_num=8)
BEGIN = 1_700_000_000_000

# key hash (all of slot 1), offset, seconds, previous entry
ENTRIES = [(1, 100, 0, 0), (4, 200, 2, 1), (1, 300, 0, 2), (1, 300, 5, 3)]


def write_file(
    path: Path, entries: list[tuple[int, int, int, int]] = ENTRIES, *, slot: int = 4
) -> Path:
    """Write an index file that uses slot 1 only."""
    data = np.zeros(index_file_size(3, 8), np.uint8)
    header = np.zeros(1, INDEX_HEADER)
    header["begin_timestamp"], header["end_timestamp"] = BEGIN, BEGIN + 5000
    header["end_phy_offset"], header["index_count"] = 300, len(entries) + 1
    data[: INDEX_HEADER.itemsize] = np.frombuffer(header.tobytes(), np.uint8)
    data[index_slot_at(1) : index_slot_at(2)] = np.frombuffer(
        slot.to_bytes(4, "big", signed=True), np.uint8
    )
    packed = np.array(entries, INDEX_ENTRY).tobytes()
    begin = index_entry_at(1, 3)
    data[begin : begin + len(packed)] = np.frombuffer(packed, np.uint8)
    path.write_bytes(data.tobytes())
    return path


def test_a_chain_gives_its_entries_newest_first(tmp_path: Path) -> None:
    file = IndexFile(write_file(tmp_path / "1"), CONFIG)
    assert list(file.select_phy_offset(1)) == [300, 300, 100]
    assert list(file.select_phy_offset(4)) == [200]
    assert list(file.select_phy_offset(7)) == []
    assert list(file.select_phy_offset(2)) == []


@pytest.mark.parametrize(
    ("entries", "slot"),
    [
        pytest.param([(1, 100, 0, 1)], 1, id="names-itself"),
        pytest.param([(1, 100, 0, 2), (1, 200, 0, 1)], 2, id="loops"),
        pytest.param([(1, 100, 0, 7)], 1, id="goes-up"),
        pytest.param([(1, 100, 0, -1)], 1, id="negative-previous"),
        pytest.param([(1, 100, -1, 0)], 1, id="negative-time"),
        pytest.param([(1, -1, 0, 0)], 1, id="negative-offset"),
        pytest.param([(2, 100, 0, 0)], 1, id="key-of-another-slot"),
        pytest.param([(-2, 100, 0, 0)], 1, id="negative-hash"),
        pytest.param(ENTRIES, 7, id="slot-beyond-the-count"),
        pytest.param(ENTRIES, 2**30, id="slot-outside-the-file"),
        pytest.param(ENTRIES, -1, id="negative-slot"),
    ],
)
def test_an_impossible_chain_is_damage(
    tmp_path: Path, entries: list[tuple[int, int, int, int]], slot: int
) -> None:
    file = IndexFile(write_file(tmp_path / "1", entries, slot=slot), CONFIG)
    with pytest.raises(DamageError):
        list(file.select_phy_offset(1))


def test_entries_of_a_dispatched_output_are_in_log_order(tmp_path: Path) -> None:
    entries = [(1, 100, 0, 0), (1, 90, 0, 1), (1, 300, 0, 2)]
    path = write_file(tmp_path / "1", entries, slot=3)
    assert list(IndexFile(path, CONFIG).select_phy_offset(1)) == [300, 90, 100]
    with pytest.raises(DamageError, match="order"):
        list(IndexFile(path, CONFIG, IndexBound(phy_offset=400, count=3)).select_phy_offset(1))


def test_entries_beyond_the_bound_do_not_count(tmp_path: Path) -> None:
    path = write_file(tmp_path / "1")
    file = IndexFile(path, CONFIG, IndexBound(phy_offset=300, count=2))
    assert list(file.select_phy_offset(1)) == [100]
    torn = IndexFile(write_file(path, [*ENTRIES[:2], (0, 0, 0, 0)], slot=3), CONFIG, file.bound)
    with pytest.raises(DamageError, match="progress"):  # its page was not flushed
        list(torn.select_phy_offset(1))


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    path = write_file(tmp_path / "1")
    with pytest.raises(DamageError, match="broker-conf"):
        IndexFile(path, StoreConfig()).header()


def test_a_count_that_was_never_written_is_one(tmp_path: Path) -> None:
    path = tmp_path / "1"
    path.write_bytes(bytes(index_file_size(3, 8)))
    assert IndexFile(path, CONFIG).header().index_count == 1
    assert list(IndexFile(path, CONFIG).select_phy_offset(1)) == []


def test_index_files_are_listed_by_name_and_others_skipped(tmp_path: Path) -> None:
    assert list_index_files(tmp_path) == []
    (tmp_path / "index").mkdir()
    for name in ("20240101000000001", "20240101000000000", "x.bak"):
        (tmp_path / "index" / name).write_bytes(b"")
    listed = [path.name for path in list_index_files(tmp_path)]
    assert listed == ["20240101000000000", "20240101000000001"]


def test_keys_have_the_hashes_of_the_format_notes() -> None:
    assert index_key_hash("TopicTest", "UK-0001") == 303458154
    assert index_key_hash("TopicTest", "k1") == 2746024
    assert index_key_hash("TopicTest", "TagA", is_tag=True) == abs(
        java.hash_code("TopicTest#T#TagA")
    )
