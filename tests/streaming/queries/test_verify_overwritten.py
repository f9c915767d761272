"""What verify counts as stale after a broker has lost a torn tail and written over it. No JVM."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from store import layout
from store.index.writer import IndexService
from streaming.queries.verify import verify
from tests.logs.build import Message
from tests.support.dispatching import HastyDisk, dispatch_all
from tests.support.verify_stores import (
    CONFIG,
    flip,
    forget_progress,
    make,
    messages,
    requests_of,
    write_store,
)

ROOMY = replace(CONFIG, max_index_num=100)


def overwritten(parent: Path, cut: int, sent: list[Message]) -> tuple[Path, Path]:
    """Make a store whose broker lost its messages from ``cut`` on, and stored these instead.

    Its index keeps the entries of the lost messages, before those of the new ones.
    """
    store, output = make(parent, ROOMY, cut + 4)
    lost = requests_of(store, ROOMY)
    shutil.rmtree(output)
    write_store(parent, [*messages(cut), *sent])
    dispatch_all(store, output, ROOMY)
    forget_progress(output)
    shutil.rmtree(output / "index")
    disk = HastyDisk()
    service = IndexService(output, ROOMY, disk)
    service.build_index(lost)
    service.build_index(requests_of(store, ROOMY).slice(cut, cut + len(sent)))
    disk.close()
    return store, output


def keyed(first: int, *keys: str) -> list[Message]:
    """Make messages with these keys; their records have the size of other messages here."""
    return [replace(m, properties=[("TAGS", "A"), ("KEYS", key)])
            for m, key in zip(messages(len(keys), first), keys, strict=True)]  # fmt: skip


@pytest.mark.parametrize(
    ("new", "stale"),
    [
        (["n5 common"], 8),
        (["n5 common", "n6 common", "n7 common", "n8 common", "n9 common", "n0 common"], 8),
        (["k5 comm0n", "n6 common"], 8),
        (["k5 common", "k6 c0mmon", "k7 common"], 8),
        (["k5-and no", "n6 common"], 8),
        (["", "n6 common"], 8),
    ],
    ids=["one", "more", "same first key", "same first record", "other sizes", "no key at first"],
)
def test_entries_of_an_overwritten_tail_are_stale(
    tmp_path: Path, new: list[str], stale: int
) -> None:
    store, output = overwritten(tmp_path, 5, keyed(5, *new))
    result = verify(store, output, ROOMY)
    assert result.differences == ()
    assert result.counts.stale_entries == stale
    assert result.counts.entries == 10 + 2 * sum(map(bool, new))


@pytest.mark.parametrize("entry", [*range(1, 11), *range(19, 23)])
def test_a_changed_entry_beside_stale_ones_is_a_difference(tmp_path: Path, entry: int) -> None:
    store, output = overwritten(tmp_path, 5, keyed(5, "n5 common", "n6 common"))
    (path,) = (output / "index").iterdir()
    flip(path, layout.index_entry_at(entry, ROOMY.max_hash_slot_num))
    assert "entry" in {d.part for d in verify(store, output, ROOMY).differences}


def test_more_entries_than_a_lost_tail_explains_are_a_difference(tmp_path: Path) -> None:
    store, output = overwritten(tmp_path, 5, keyed(5, "n5 common", "n6 common"))
    (path,) = (output / "index").iterdir()
    with path.open("r+b") as file:  # a stale entry of a record before the cut
        file.seek(layout.index_entry_at(12, ROOMY.max_hash_slot_num) + 4)
        file.write(bytes(8))
    assert verify(store, output, ROOMY).differences
